"""A query on a RocketMQ cluster: the options that say where it is, and what becomes of all others there."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.errors import OptionError
from pyspark_mq.options.tables import Option, names_of
from store.cluster.address import TOOLS_GROUP, ClusterAddress, Credentials
from store.model.errors import InvalidArgument
from store.remoting.endpoints import Tls

CLUSTER_OPTIONS = (
    Option("nameServer", None, "10.0.0.1:9876;10.0.0.2:9876", "name servers, instead of `path`", "(needed)"),
    Option("accessKey", None, "rocketmq2", "the account, where the cluster has access control (ACL 1.0)", "none"),
    Option("secretKey", None, "12345678", "its secret; it is not shown, neither in errors nor in plans", "none"),
    Option("useTls", "false", "true", "whether name servers and brokers are asked by TLS"),
    Option(
        "tlsCaFile",
        None,
        "/etc/mq/ca.pem",
        "with `useTls`: a file on the driver with the certificates (PEM) that count: a server's own, or of who signed "
        "it; names in certificates are not looked at then. Without it those count that the system of each machine "
        "trusts, for the name by which `nameServer` or a route calls the server",
        "those that the system trusts",
    ),
)
CLUSTER_NAMES = names_of(CLUSTER_OPTIONS)

NOT_ON_A_CLUSTER: Mapping[str, str] = {
    "path": "a query reads a directory or a cluster",
    "archive": "brokers keep what they have; an archive is read by its own `path`",
    "storageOptions": "they are for an archive, which is read by its own `path`",
    "consumeMode": "brokers lock queues for members of a group that send heart-beats, and a query is none; what "
    "`startingOffsets=group` and `consumerGroup` do works",
    "whenLocked": "it goes with `consumeMode=orderly`",
    "maxBytesPerTrigger": "no broker says how large messages are before they are read; use `maxOffsetsPerTrigger`",
    "stagingPath": "it is for `delivery=exactly-once`",
    "producerGroup": "it is for `delivery=exactly-once`",
}
"""Option to why it cannot be used. All others work."""

OTHERWISE_ON_A_CLUSTER: Mapping[str, str] = {
    "assign": 'a queue is `"broker-a:0"`: `{"orders": ["broker-a:0", "broker-b:0"]}`',
    "startingOffsets": 'JSON names queues by their brokers: `{"orders": {"broker-a:0": 23}}`',
    "startingOffsetsByTimestamp": "likewise",
    "endingOffsets": "likewise",
    "endingOffsetsByTimestamp": "likewise",
    "consumerGroup": "its offsets are the brokers', and pulls are made in its name (otherwise that of "
    f"`{TOOLS_GROUP}`): brokers count them, and access control looks at it. Where an admin tool resets the group a "
    "query goes on from its checkpoint; brokers of 5.3 and later say so, and that is a warning",
    "subExpression": "messages that do not match come over the network, too, and are dropped in the task",
    "failOnDataLoss": (
        "messages that are gone are noticed; that a RocketMQ broker restarted a topic, only where it is shorter now"
    ),
    "holdTimeoutMs": "an idle query looks at all of its queues as often as that: set `15000` on a cluster with many; "
    "an arrival wakes it at once all the same",
    "ledgerPath": "with `realTime` it is needed: a place that the driver and all executors see",
    "delivery": "only `at-least-once`, which has to be said",
}
"""Option to what is otherwise than with a directory."""

ONCE_ON_A_CLUSTER = (
    "delivery=exactly-once needs all rows of a batch to be seen at once, together with a note of it, and brokers take "
    "messages one by one: set delivery to at-least-once"
)


def cluster_of(given: Mapping[str, str]) -> ClusterAddress:
    """The cluster that options name. Raises `OptionError`, also for one that no cluster has."""
    for name, why in NOT_ON_A_CLUSTER.items():
        if given.get(name):
            raise OptionError(f"{name} does not go with nameServer: {why}")
    if ("accessKey" in given) != ("secretKey" in given):
        raise OptionError("accessKey and secretKey go together: give both, or none")
    credentials = Credentials(given["accessKey"], given["secretKey"]) if "accessKey" in given else None
    try:
        return ClusterAddress.parse(
            given["nameServer"], credentials, given.get("consumerGroup", TOOLS_GROUP), _tls_of(given)
        )
    except InvalidArgument as error:
        raise OptionError(f"nameServer: {error}") from error


def _tls_of(given: Mapping[str, str]) -> Tls | None:
    """Raises `OptionError`."""
    wanted, ca_file = given.get("useTls", "false").strip().lower(), given.get("tlsCaFile")
    if wanted not in ("true", "false"):
        raise OptionError(f"useTls takes true or false, got {wanted!r:.40}")
    if wanted == "false":
        if ca_file is not None:
            raise OptionError("tlsCaFile goes with useTls=true: set that, too, or leave both out")
        return None
    try:
        return Tls() if ca_file is None else Tls.trusting(ca_file)
    except InvalidArgument as error:
        raise OptionError(f"tlsCaFile: {error}") from error
