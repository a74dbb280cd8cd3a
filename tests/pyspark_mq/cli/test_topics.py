"""`pyspark-mq topic`."""

from pathlib import Path

from tests.pyspark_mq.cli.process import succeed


def test_topics_are_created_grown_and_listed(path: Path) -> None:
    succeed("topic", "create", path, "payments")
    assert succeed("topic", "create", path, "orders", "--queues", 3) == "orders: 3 queues\n"
    assert succeed("topic", "list", path) == "orders: 3 queues\npayments: 4 queues\n"
