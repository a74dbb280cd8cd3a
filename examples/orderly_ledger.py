"""An account ledger that stays correct although the processes that update it are killed.

    python examples/orderly_ledger.py --seconds 10

Deposits and withdrawals go to a topic with the account as sharding key. So all orders of an account are in one queue,
in order. Three processes consume the queues in order. After one is killed, its unfinished messages are delivered again.
So the ledger records the next offset of each queue in the same transaction as the balances, and skips messages before
it. At the end the balances are compared with the expected ones.
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
    """Return a balance after an order, both in cents. A withdrawal (below 0) without enough money changes nothing."""
    return cents + order if cents + order >= 0 else cents


def open_ledger(directory: Path) -> sqlite3.Connection:
    ledger = sqlite3.connect(directory / "ledger.db", timeout=60, isolation_level=None)
    ledger.execute("PRAGMA synchronous = OFF")  # only processes are killed, not the machine
    return ledger


def book(ledger: sqlite3.Connection, messages: Sequence[ReceivedMessage]) -> None:
    """Apply messages of one queue in one transaction."""
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
    """Consume until killed."""

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        with closing(open_ledger(directory)) as ledger:
            book(ledger, messages)

    with Consumer(directory / "mq", GROUP, TOPIC, listener, orderly=True, config=CONFIG) as consumer:
        consumer.wait()


def start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--keep", str(directory)])


def booked(directory: Path) -> int:
    """Return the number of processed orders."""
    with closing(open_ledger(directory)) as ledger:
        (count,) = ledger.execute("SELECT sum(next) FROM queues").fetchone()
        return int(count)


def run(directory: Path, seconds: float) -> int:
    """Send orders, and kill keepers concurrently. Return the number of wrong balances at the end."""
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
