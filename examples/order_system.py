"""Orders are paid in time or cancelled, with transactions and delayed messages, while shops are killed.

    python examples/order_system.py --seconds 10

A shop sends each order as a message in a transaction, and writes the order to its database in that transaction. If a
shop is killed in between, another shop looks the order up in the database and completes the transaction. A delayed
message marks the deadline of each order. At the end every order was either paid or cancelled, once.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from store import Message, MessageStore, Outcome, StoredMessage, TransactionProducer
from store.broker.transactions import Transactions

ORDERS, DEADLINES, GROUP = "orders", "deadlines", "shops"
SHOPS, KILL_SECONDS, DEADLINE_MS = 2, 1.0, 1500
TABLE = "CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL)"


def open_database(directory: Path) -> sqlite3.Connection:
    database = sqlite3.connect(directory / "orders.db", timeout=60, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")  # only processes are killed, not the machine
    return database


def shop(directory: Path, name: str) -> None:
    """Take orders until killed."""
    chance, number = random.Random(name), 0

    def was_taken(message: StoredMessage) -> Outcome:
        with closing(open_database(directory)) as database:  # runs in another thread
            found = database.execute("SELECT 1 FROM orders WHERE id = ?", [message.keys[0]]).fetchone()
        return Outcome.COMMIT if found else Outcome.ROLL_BACK

    with (
        closing(open_database(directory)) as database,
        TransactionProducer(directory / "mq", GROUP, was_taken, check_interval=1.0) as producer,
    ):

        def take(order: str, transaction_id: str) -> Outcome:
            if chance.random() < 0.1:
                return Outcome.ROLL_BACK  # the customer changed their mind
            database.execute("INSERT INTO orders VALUES (?, 'open')", [order])
            return Outcome.COMMIT

        while True:
            number += 1
            order = f"{name}-{number}"
            producer.send(Message(ORDERS, order, keys=order), partial(take, order))
            time.sleep(0.005)


def accounts(store: MessageStore, database: sqlite3.Connection, seen: dict[str, int], chance: random.Random) -> None:
    """Pay half of the new orders, set a deadline for each, and cancel unpaid orders after it."""
    for message in new(store, ORDERS, seen):
        order = message.keys[0]
        if chance.random() < 0.5:
            database.execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'open'", [order])
        store.put(Message(DEADLINES, order, deliver_at=int(time.time() * 1000) + DEADLINE_MS))
    for message in new(store, DEADLINES, seen):
        order = message.body.decode()
        database.execute("UPDATE orders SET state = 'cancelled' WHERE id = ? AND state = 'open'", [order])


def new(store: MessageStore, topic: str, seen: dict[str, int]) -> list[StoredMessage]:
    got = store.get_message("accounts", topic, 0, seen.get(topic, 0))
    seen[topic] = got.next_begin_offset
    return got.messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long orders are taken")
    parser.add_argument("--shop", nargs=2, metavar=("DIRECTORY", "NAME"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.shop:
        shop(Path(asked.shop[0]), asked.shop[1])
        return
    with TemporaryDirectory() as folder:
        sell(Path(folder), asked.seconds)


def sell(directory: Path, seconds: float) -> None:
    chance, killed, number = random.Random(1), 0, 0
    with MessageStore.open(directory / "mq") as store, closing(open_database(directory)) as database:
        database.execute(TABLE)
        store.create_topic(ORDERS, 1)
        store.create_topic(DEADLINES, 1)
        shops: list[subprocess.Popen[bytes]] = []
        seen: dict[str, int] = {}
        end = kill_at = float("inf")
        while time.monotonic() < end:
            while len(shops) < SHOPS:
                number += 1
                command = [sys.executable, __file__, "--shop", str(directory), f"shop{number}"]
                shops.append(subprocess.Popen(command))
            accounts(store, database, seen, chance)
            if seen.get(ORDERS, 0) and end == float("inf"):  # the shops have started
                end, kill_at = time.monotonic() + seconds, time.monotonic() + KILL_SECONDS
            if time.monotonic() > kill_at:
                kill(shops.pop(chance.randrange(SHOPS)))
                killed, kill_at = killed + 1, time.monotonic() + KILL_SECONDS
            time.sleep(0.01)
        for each in shops:
            kill(each)
            killed += 1
        left = Transactions(store, GROUP)  # no shop is left to complete these
        taken = {order for (order,) in database.execute("SELECT id FROM orders")}
        while left.check(lambda each: Outcome.COMMIT if each.keys[0] in taken else Outcome.ROLL_BACK, immunity=-1):
            pass
        while seen.get(DEADLINES, 0) < store.max_offset(ORDERS, 0):
            accounts(store, database, seen, chance)
            time.sleep(0.01)
        states = dict(database.execute("SELECT state, count(*) FROM orders GROUP BY state").fetchall())
    print(
        f"{len(taken):,} orders, {killed} shops killed: {states.get('paid', 0):,} paid, "
        f"{states.get('cancelled', 0):,} cancelled, {states.get('open', 0)} left open, "
        f"{abs(seen[ORDERS] - len(taken))} messages too many or too few"
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


if __name__ == "__main__":
    main()
