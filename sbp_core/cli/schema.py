"""`sbp schema`: the columns of typed streams, their versions, and whether a file fits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core.cli.commands import Actions
from sbp_core.cli.connect import STREAM, connect, find_stream, titled
from sbp_core.cli.options import PATH, ClientOptions, client_options
from sbp_core.cli.output import show_time, write_json, write_line
from sbp_core.client import SchemaVersion, StreamInfo, newest_schemas
from sbp_core.errors import ConfigurationError, NotFoundError
from sbp_core.records import Change, Difference, StreamSchema, compare_schemas, field_text
from sbp_core.regular_files import open_regular

_AS_IS: Final = "as it is"
_WITH_MERGE: Final = "with mergeSchema=true"
_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_MAGIC: Final = b"ARROW1"
_INT96: Final = "INT96"

_SPARK_READS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
}
"""The types that Spark reads other types as."""


schema: Final = Actions("schema", help="Look at the schemas of typed streams.")

_stream: Final = click.argument("stream", type=STREAM, metavar="NAME_OR_ID")


@schema.command("show", example="sbp schema show orders")
@_stream
@client_options
def show(options: ClientOptions, stream: str) -> int:
    """Show the columns of the newest version."""
    with connect(options) as client:
        info = find_stream(client, stream)
        newest = newest_schemas(client, [info.stream_id]).get(info.stream_id)
    if newest is None:
        raise _untyped(info)
    if options.json:
        write_json(_described(info, newest))
        return 0
    write_line(f"{titled(info)}, version {newest.version} of {show_time(newest.registered_at_ms)}")
    for field in newest.schema.arrow:
        write_line(f"  {field_text(field)}")
    return 0


@schema.command("history", example="sbp schema history orders")
@_stream
@client_options
def history(options: ClientOptions, stream: str) -> int:
    """List the versions, the first one first: when each was registered, and its changes."""
    with connect(options) as client:
        info = find_stream(client, stream)
        versions = client.describe_schemas([info.stream_id])[info.stream_id]
    if not versions:
        raise _untyped(info)
    for before, version in zip((None, *versions), versions, strict=False):
        changes = _changes(before, version)
        if options.json:
            write_json({**_described(info, version), "changes": changes})
            continue
        write_line(f"version {version.version} of {show_time(version.registered_at_ms)}")
        for each in changes:
            write_line(f"  {each}")
    return 0


@schema.command("check", example="sbp schema check orders new.parquet")
@_stream
@click.argument("file", type=PATH, help="Parquet, or an Arrow IPC file or stream, on this machine.")
@client_options
def check(options: ClientOptions, stream: str, file: str) -> int:
    """Check whether a file could be written to the stream. Nothing is written.

    The columns of the Parquet or Arrow file are compared with the stream's schema, and the
    differences listed: + a new column, ~ a wider type, ? a column that may have nulls where the
    stream requires values, ! a column that does not fit. Exit code 0 if Spark could write the file,
    as it is or with mergeSchema; 1 if not.
    """
    given = StreamSchema.of(read_file_schema(Path(file)))
    report = partial(_report, file, is_json=options.json)
    with connect(options) as client:
        info = find_stream(client, stream)
        newest = newest_schemas(client, [info.stream_id]).get(info.stream_id)
        bounds = client.stream_bounds([info.stream_id]) if newest is None else []
    if any(each.next_offset > each.start_offset for each in bounds):
        return report(info, None, "it has plain records and no schema", [])
    if newest is None:
        return report(info, _AS_IS, "it gets the schema of what is written first", [])
    compared = compare_schemas(newest.schema, given)
    fit: str | None = _AS_IS
    if compared.faults:
        fit = None
    elif any(each.change is not Change.RELAXED for each in compared.differences):
        fit = _WITH_MERGE
    return report(info, fit, f"version {newest.version} of its schema", compared.differences)


def _report(
    file: str,
    info: StreamInfo,
    fit: str | None,
    basis: str,
    differences: Sequence[Difference],
    *,
    is_json: bool,
) -> int:
    """Print how the file fits, None if it does not; return the exit code."""
    if is_json:
        found = [{"change": each.change.name, "text": each.text} for each in differences]
        write_json({"stream": info.label, "fits": fit, "differences": found})
    else:
        for each in differences:
            write_line(f"  {each}")
        fits = "does not fit" if fit is None else f"fits {fit}"
        write_line(f"{file} {fits} into {titled(info)}: {basis}")
    return 1 if fit is None else 0


def _changes(before: SchemaVersion | None, version: SchemaVersion) -> list[str]:
    if before is None:
        return [f"+ column {field_text(field)}" for field in version.schema.arrow]
    return list(map(str, compare_schemas(before.schema, version.schema).differences))


def _described(info: StreamInfo, version: SchemaVersion) -> dict[str, object]:
    return {
        "stream": info.label,
        "stream_id": info.stream_id,
        "version": version.version,
        "registered_at_ms": version.registered_at_ms,
        "fingerprint": version.schema.fingerprint,
        "columns": [field_text(field) for field in version.schema.arrow],
    }


def _untyped(info: StreamInfo) -> NotFoundError:
    return NotFoundError.of(
        f"{titled(info)} has no schema: its records are plain, or it has none yet"
    )


def read_file_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file, or of an Arrow IPC file or stream.

    Raises ConfigurationError for any other file.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            magic = file.read(len(_ARROW_MAGIC))
            file.seek(0)
            leaves: Iterator[str] = repeat("")
            if magic.startswith(_PARQUET_MAGIC):
                parquet = pq.ParquetFile(file)
                found, leaves = parquet.schema_arrow, iter(_physical_types(parquet))
            elif magic == _ARROW_MAGIC:
                found = pa.ipc.open_file(file).schema
            else:
                found = pa.ipc.open_stream(file).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise ConfigurationError(
                f"{path} cannot be read: {os.strerror(error.errno)}"
            ) from error
        raise ConfigurationError(
            f"{path} cannot be read as Parquet, Arrow file or Arrow stream: {error}"
        ) from error
    return pa.schema([_field(each, leaves) for each in found])


def _physical_types(file: pq.ParquetFile) -> list[str]:
    """Return the physical type of each leaf column, in the order of the schema."""
    return [file.schema.column(index).physical_type for index in range(len(file.schema))]


def _field(given: pa.Field, leaves: Iterator[str]) -> pa.Field:
    return pa.field(given.name, _type(given.type, leaves), nullable=given.nullable)


def _type(given: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return the type that Spark reads; `leaves` has the physical types of Parquet's leaf columns.

    Times of Parquet's old INT96 are in UTC for Spark; Arrow gives them no zone.
    """
    if pa.types.is_struct(given):
        return pa.struct([_field(each, leaves) for each in given])
    if pa.types.is_map(given):
        return pa.map_(_field(given.key_field, leaves), _field(given.item_field, leaves))
    if _is_list(given):
        return pa.list_(_field(given.value_field, leaves))
    leaf = next(leaves)
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_timestamp(given):
        is_zoned = leaf == _INT96 or given.tz is not None
        return pa.timestamp("us", tz="UTC" if is_zoned else None)
    if pa.types.is_fixed_size_binary(given):
        return pa.binary()
    return _SPARK_READS.get(given, given)


def _is_list(given: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(given)
        or pa.types.is_large_list(given)
        or pa.types.is_fixed_size_list(given)
    )
