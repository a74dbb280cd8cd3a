"""Which log the options of a query name: the one place that knows kinds of logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pyspark_mq.errors import OptionError
from store.any_log import LogAddress
from store.local import LocalAddress

_OF_DATABRICKS = re.compile("^dbfs:/+", re.IGNORECASE)


def address_of(options: Mapping[str, str]) -> LogAddress:
    """By the option `path`, a store's directory or a `file:` URL. options: by their documented names.

    Raises `OptionError` where they name none, or one that is looked for in the wrong place.
    """
    path = options.get("path", "")
    if not path:
        raise OptionError('The option path is missing: give the store\'s directory, e.g. .load("/data/mq")')
    local = re.sub("^file:(//(?=/))?", "", path)
    if (mounted := _OF_DATABRICKS.match(local)) is not None:
        raise OptionError(
            f"path {path!r}: a store is opened as a directory. Where dbfs: is mounted on the driver and all executors, "
            f"that is {'/dbfs/' + local[mounted.end() :]!r}"
        )
    if "://" in local or local.startswith("//"):
        return LocalAddress(path)  # which says itself that it is none
    return LocalAddress(os.path.abspath(local) if os.path.isabs(local) else _in_working_folder(local))


def _in_working_folder(path: str) -> str:
    """An absolute path: executors may run in another directory than the driver. With Spark Connect so does the user."""
    absolute = os.path.abspath(path)
    if not os.path.exists(absolute):
        raise OptionError(
            f"path {path!r} is relative, and where Spark's driver runs there is no {absolute}; give an absolute path "
            "(with Spark Connect, and on a cluster, one of the driver's machine)"
        )
    return absolute
