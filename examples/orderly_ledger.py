"""An account ledger whose balances are right although the processes that keep it are killed.

    python examples/orderly_ledger.py --seconds 10

Orders to deposit and to withdraw go to a topic with the account as sharding key, so those of one account stand in one
queue, in order. The order matters: who has too little is given nothing. Three processes consume the queues, orderly:
no queue is read in two places, and what one had in hand when it was killed comes again, and nothing else. So the ledger
notes with the balances, in the same transaction, up to which message of each queue they are, and passes over what it
has seen. At the end they are compared with what the orders come to.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from store import ConsumeFromWhere, Consumer, ConsumerConfig, Message, MessageStore, ReceivedMessage

TOPIC, GROUP, QUEUES, ACCOUNTS, KEEPERS, KILL_SECONDS = "orders", "ledger", 8, 50, 3, 1.5
CONFIG = ConsumerConfig(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    consume_thread_max=2,
    consume_message_batch_max_size=8,
)
TABLES = """
CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE queues (id INTEGER PRIMARY KEY, next INTEGER NOT NULL);
"""


def after(cents: int, order: int) -> int:
    """A balance after an order, both in cents: an order below 0 withdraws, and needs as much to be there."""
    return cents + order if cents + order >= 0 else cents


def open_ledger(directory: Path) -> sqlite3.Connection:
    ledger = sqlite3.connect(directory / "ledger.db", timeout=60, isolation_level=None)
    ledger.execute("PRAGMA synchronous = OFF")  # processes are killed here, not the machine
    return ledger


def book(ledger: sqlite3.Connection, messages: Sequence[ReceivedMessage]) -> None:
    """Some messages of one queue, in one transaction."""
    queue = messages[0].queue_id
    with ledger:
        ledger.execute("BEGIN IMMEDIATE")
        (seen,) = ledger.execute("SELECT next FROM queues WHERE id = ?", [queue]).fetchone()
        for message in messages:
            if message.queue_offset >= seen:
                account = message.keys[0]
                (cents,) = ledger.execute("SELECT cents FROM accounts WHERE id = ?", [account]).fetchone()
                new = after(cents, int(message.body))
                ledger.execute("UPDATE accounts SET cents = ? WHERE id = ?", [new, account])
        done = max(seen, messages[-1].queue_offset + 1)
        ledger.execute("UPDATE queues SET next = ? WHERE id = ?", [done, queue])


def keep(directory: Path) -> None:
    """Consume, until killed."""

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        with closing(open_ledger(directory)) as ledger:
            book(ledger, messages)

    with Consumer(directory / "mq", GROUP, TOPIC, listener, orderly=True, config=CONFIG) as consumer:
        consumer.wait()


def start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--keep", str(directory)])


def booked(directory: Path) -> int:
    """How many orders the ledger has seen."""
    with closing(open_ledger(directory)) as ledger:
        (count,) = ledger.execute("SELECT sum(next) FROM queues").fetchone()
        return int(count)


def run(directory: Path, seconds: float) -> int:
    """Take orders for a while, and kill keepers meanwhile. How many balances are wrong at the end."""
    with closing(open_ledger(directory)) as ledger:
        ledger.executescript(TABLES)
        ledger.executemany("INSERT INTO accounts VALUES (?, 0)", [(f"a-{n}",) for n in range(ACCOUNTS)])
        ledger.executemany("INSERT INTO queues VALUES (?, 0)", [(n,) for n in range(QUEUES)])
    right: Counter[str] = Counter()
    taken = killed = 0
    keepers = []
    with MessageStore.open(directory / "mq") as store:
        store.create_topic(TOPIC, QUEUES)
        try:
            keepers += [start(directory) for _ in range(KEEPERS)]
            begin = time.monotonic()
            while time.monotonic() < begin + seconds or not killed:
                account, order = f"a-{random.randrange(ACCOUNTS)}", random.randint(-900, 1000)
                store.put(Message(TOPIC, str(order), keys=account, sharding_key=account))
                right[account] = after(right[account], order)
                taken += 1
                if time.monotonic() > begin + KILL_SECONDS * (killed + 1):
                    victim = keepers.pop(random.randrange(KEEPERS))
                    victim.kill()
                    victim.wait()
                    keepers.append(start(directory))
                    killed += 1
                time.sleep(0.002)
            while booked(directory) < taken:
                time.sleep(0.05)
        finally:
            for keeper in keepers:
                keeper.kill()
                keeper.wait()
    with closing(open_ledger(directory)) as ledger:
        balances = dict(ledger.execute("SELECT id, cents FROM accounts"))
    wrong = [account for account, cents in balances.items() if cents != right[account]]
    print(f"{taken:,} orders, {killed} keepers killed, {ACCOUNTS} accounts, {len(wrong)} balances wrong")
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description="A ledger that is right although its keepers are killed.")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long orders come in")
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.keep is not None:
        keep(arguments.keep)
        return
    with TemporaryDirectory(prefix="ledger-") as folder:
        sys.exit(run(Path(folder), arguments.seconds) != 0)


if __name__ == "__main__":
    main()
