"""Which log the options of a query name: the one place that knows kinds of logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pyspark_mq.errors import OptionError
from store.any_log import LogAddress
from store.local import LocalAddress


def address_of(options: Mapping[str, str]) -> LogAddress:
    """By the option `path`, a store's directory or a `file:` URL. options: by their documented names.

    Raises `OptionError` where they name none.
    """
    path = options.get("path", "")
    if not path:
        raise OptionError('The option path is missing: give the store\'s directory, e.g. .load("/data/mq")')
    # Executors may run in another directory than the driver.
    local = re.sub("^file:(//(?=/))?", "", path)
    return LocalAddress(path if "://" in local or local.startswith("//") else os.path.abspath(local))
