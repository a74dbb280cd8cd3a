from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark_mq.errors import OptionError
from pyspark_mq.options.tables import NO_OPTIONS_OF_TABLES, Option, names_of
from pyspark_mq.options.values import duration, one_of
from store.client.log_kinds import address_at
from store.cluster.address import TOOLS_GROUP, ClusterAddress, Credentials, broker_names
from store.directory.directory_log import DirectoryAddress
from store.model.errors import InvalidArgument
from store.model.log_protocol import LogAddress
from store.objects.urls import storage_options, without_secrets
from store.remoting.endpoints import Tls

CLUSTER_OPTIONS = (
    Option("nameServer", None, "10.0.0.1:9876;10.0.0.2:9876", "name servers, instead of `path`", "(needed)"),
    Option("accessKey", None, "rocketmq2", "the account, if the cluster has access control (ACL 1.0)", "none"),
    Option("secretKey", None, "12345678", "its secret; it is not shown, neither in errors nor in plans", "none"),
    Option("useTls", "false", "true", "connect to name servers and brokers by TLS"),
    Option(
        "tlsCaFile",
        None,
        "/etc/mq/ca.pem",
        "with `useTls`: a file on the driver with trusted certificates (PEM): a server's own, or its authority's. "
        "Names in certificates are then not checked. Without this option, each machine trusts its system's "
        "certificates, and the name in `nameServer` or a route must match",
        "those that the system trusts",
    ),
    Option(
        "brokers",
        None,
        "broker-a,broker-b",
        "the names of all brokers of the cluster. A query waits for each of them, even if no name server lists it. It "
        "does not wait for a broker that is not in this list",
        "those that name servers list, or a checkpoint names",
    ),
    Option(
        "brokerTimeout",
        "10m",
        "30 minutes",
        "the time to wait for a broker that does not answer, before a query or a write ends with an error",
    ),
    Option(
        "whenBrokerMissing",
        "wait",
        "skip",
        "what a query or a write does while a broker does not answer. `wait`, the default: wait for it, and fail after "
        "`brokerTimeout`. `skip` (queries): continue without it until it answers. `failOver` (writes): send to queues "
        "of other brokers. A stream reads the other brokers in any case",
    ),
)
CLUSTER_NAMES = names_of(CLUSTER_OPTIONS)

NOT_ON_A_CLUSTER: Mapping[str, str] = {
    "path": "a query reads a directory or a cluster, not both",
    "archive": "a cluster has no archive of this project. To read an archive, give it as `path` without `nameServer`",
    "storageOptions": "they are for an archive, which is read by `path` without `nameServer`",
    "consumeMode": "brokers lock queues for members of a group that send heartbeats, and a query is no member. "
    "`startingOffsets=group` and `consumerGroup` work",
    "whenLocked": "it needs `consumeMode=orderly`, which works with a directory only",
    "maxBytesPerTrigger": "brokers do not tell the sizes of messages before they are read. Use `maxOffsetsPerTrigger`",
    "stagingPath": "it is for `delivery=exactly-once`, which works with a directory only",
    "producerGroup": "it is for `delivery=exactly-once`, which works with a directory only",
}
"""Options that a cluster does not support, with the reason. All others work."""

OTHERWISE_ON_A_CLUSTER: Mapping[str, str] = {
    "assign": 'a queue is `"broker-a:0"`: `{"orders": ["broker-a:0", "broker-b:0"]}`',
    "startingOffsets": 'JSON names queues by their brokers: `{"orders": {"broker-a:0": 23}}`',
    "startingOffsetsByTimestamp": "likewise",
    "endingOffsets": "likewise",
    "endingOffsetsByTimestamp": "likewise",
    "consumerGroup": f"the brokers keep its offsets. Pulls name the group (default `{TOOLS_GROUP}`), for the brokers' "
    "statistics and access control. After an admin tool resets the group, a query continues from its checkpoint, and "
    "logs a warning if the brokers report the reset (5.3 and later)",
    "subExpression": "the task filters: all messages come over the network",
    "failOnDataLoss": "the query notices lost messages, but a topic that a RocketMQ broker restarted only if it is now "
    "shorter",
    "holdTimeoutMs": "no effect on the load of brokers, because a pull waits at the end of each queue",
    "ledgerPath": "required with `realTime`: a place that the driver and all executors see",
    "delivery": "must be `at-least-once`",
}
"""Options that differ between a cluster and a directory, with the difference."""

ONCE_ON_A_CLUSTER = (
    "delivery=exactly-once does not work with nameServer: brokers cannot publish a batch and its record together. "
    "Set delivery to at-least-once"
)


def cluster_of(given: Mapping[str, str]) -> ClusterAddress:
    for name, why in NOT_ON_A_CLUSTER.items():
        if given.get(name):
            raise OptionError(f"{name} does not work with nameServer: {why}")
    if ("accessKey" in given) != ("secretKey" in given):
        raise OptionError("accessKey and secretKey belong together: give both or neither")
    credentials = Credentials(given["accessKey"], given["secretKey"]) if "accessKey" in given else None
    try:
        address = ClusterAddress.parse(
            given["nameServer"], credentials, given.get("consumerGroup", TOOLS_GROUP), _tls_of(given)
        )
    except InvalidArgument as error:
        raise OptionError(f"nameServer: {error}") from error
    brokers = address.brokers | broker_names(given.get("brokers", ""))
    return replace(address, brokers=brokers, broker_timeout=broker_timeout(given))


def broker_timeout(given: Mapping[str, str]) -> float:
    """Return the option `brokerTimeout` in seconds."""
    return duration("brokerTimeout", given.get("brokerTimeout", "10m"))


def when_broker_missing(given: Mapping[str, str], *choices: str) -> str:
    return one_of(*choices)("whenBrokerMissing", given.get("whenBrokerMissing", choices[0]))


def _tls_of(given: Mapping[str, str]) -> Tls | None:
    wanted, ca_file = given.get("useTls", "false").strip().lower(), given.get("tlsCaFile")
    if wanted not in ("true", "false"):
        raise OptionError(f"useTls takes true or false, got {wanted!r:.40}")
    if wanted == "false":
        if ca_file is not None:
            raise OptionError("tlsCaFile needs useTls=true: set both or neither")
        return None
    try:
        return Tls() if ca_file is None else Tls.trusting(ca_file)
    except InvalidArgument as error:
        raise OptionError(f"tlsCaFile: {error}") from error


_OF_DATABRICKS = re.compile("^dbfs:/+", re.IGNORECASE)


def address_of(options: Mapping[str, str]) -> LogAddress:
    """Return the address of the log that options name. options: by documented name."""
    named = [name for name in _KINDS if options.get(name)]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} exclude each other: a query reads or writes one log")
    if not named:
        of_table = "" if options else f". {NO_OPTIONS_OF_TABLES}"
        raise OptionError(
            'The log is not named. Set path to a store\'s directory, e.g. .load("/data/mq"), or nameServer to the '
            f"name servers of a RocketMQ cluster{of_table}"
        )
    for name in CLUSTER_NAMES:
        if named == ["path"] and options.get(name):
            raise OptionError(
                f"{name} works only with nameServer, and path is given. Remove {name}, or replace path by nameServer"
            )
    return _KINDS[named[0]](options)


def _directory(options: Mapping[str, str]) -> LogAddress:
    """Return the address of a store. The option `archive` overrides the archive in the store's settings."""
    path, secrets = options["path"], options.get("storageOptions", "")
    storage_options(secrets)  # check it here, since a store without an archive never parses it
    local = re.sub("^file:(//(localhost)?(?=/))?", "", path)
    if (mounted := _OF_DATABRICKS.match(local)) is not None:
        raise OptionError(
            f"path {path!r}: a store is opened as a local directory. If dbfs: is mounted on the driver and all "
            f"executors, give {'/dbfs/' + local[mounted.end() :]!r}"
        )
    if "://" in local and not local.startswith("file:"):
        if options.get("archive"):
            shown = without_secrets(path)
            raise OptionError(
                f"archive works only with the path of a store, and {shown} is a URL. To read the archive itself, "
                "remove the option archive"
            )
        return address_at(path, options=secrets)
    if "://" in local or local.startswith("//"):
        return DirectoryAddress(path)  # opening it raises the error
    directory = os.path.abspath(local) if os.path.isabs(local) else _in_working_folder(local)
    return address_at(directory, options.get("archive"), secrets)


def _in_working_folder(path: str) -> str:
    """Return an absolute path: executors and Spark Connect clients may have another working directory."""
    absolute = os.path.abspath(path)
    if not os.path.exists(absolute):
        raise OptionError(
            f"path {path!r} is relative, and {absolute} does not exist where Spark's driver runs. Give an absolute "
            "path on the driver's machine"
        )
    return absolute


_KINDS: Mapping[str, Callable[[Mapping[str, str]], LogAddress]] = {"path": _directory, "nameServer": cluster_of}
"""The option that names the log, and the function that makes its address."""
