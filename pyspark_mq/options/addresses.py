"""Which log the options of a query name: the one place that knows kinds of logs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from pyspark_mq.errors import OptionError
from pyspark_mq.options.cluster import CLUSTER_NAMES, cluster_of
from pyspark_mq.options.tables import NO_OPTIONS_OF_TABLES
from store.directory.directory_log import DirectoryAddress, address_at
from store.model.log_protocol import LogAddress
from store.objects.urls import storage_options

_OF_DATABRICKS = re.compile("^dbfs:/+", re.IGNORECASE)


def address_of(options: Mapping[str, str]) -> LogAddress:
    """The log that one of the options in `_KINDS` names. options: by their documented names.

    Raises `OptionError` where they name none, or two, or one that is looked for in the wrong place.
    """
    named = [name for name in _KINDS if options.get(name)]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} exclude each other: a query reads or writes one log")
    if not named:
        of_table = "" if options else f". {NO_OPTIONS_OF_TABLES}"
        raise OptionError(
            'The option path is missing: give the store\'s directory, e.g. .load("/data/mq"); or nameServer, for a '
            f"RocketMQ cluster{of_table}"
        )
    for name in CLUSTER_NAMES:
        if named == ["path"] and options.get(name):
            raise OptionError(f"{name} goes with nameServer, for a RocketMQ cluster; leave it out with path")
    return _KINDS[named[0]](options)


def _directory(options: Mapping[str, str]) -> LogAddress:
    """A store's directory or a `file:` URL of one, or an archive, there or behind another URL; a store together with
    the archive that the option `archive` names, or that it remembers."""
    path, secrets = options["path"], options.get("storageOptions", "")
    storage_options(secrets)  # of a store without an archive nobody else looks at them
    local = re.sub("^file:(//(localhost)?(?=/))?", "", path)
    if (mounted := _OF_DATABRICKS.match(local)) is not None:
        raise OptionError(
            f"path {path!r}: a store is opened as a directory. Where dbfs: is mounted on the driver and all executors, "
            f"that is {'/dbfs/' + local[mounted.end() :]!r}"
        )
    if "://" in local and not local.startswith("file:"):
        if options.get("archive"):
            raise OptionError(f"archive goes with the path of a store; {path} is an archive itself, or none")
        return address_at(path, options=secrets)
    if "://" in local or local.startswith("//"):
        return DirectoryAddress(path)  # which says itself that it is none
    directory = os.path.abspath(local) if os.path.isabs(local) else _in_working_folder(local)
    return address_at(directory, options.get("archive"), secrets)


def _in_working_folder(path: str) -> str:
    """An absolute path: executors may run in another directory than the driver. With Spark Connect so does the user."""
    absolute = os.path.abspath(path)
    if not os.path.exists(absolute):
        raise OptionError(
            f"path {path!r} is relative, and where Spark's driver runs there is no {absolute}; give an absolute path "
            "(with Spark Connect, and on a cluster, one of the driver's machine)"
        )
    return absolute


_KINDS: Mapping[str, Callable[[Mapping[str, str]], LogAddress]] = {"path": _directory, "nameServer": cluster_of}
"""What names a log to what makes its address."""
