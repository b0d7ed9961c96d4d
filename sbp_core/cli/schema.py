"""`sbp schema`: the columns of typed streams, their versions, and whether a file fits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli.commands import Actions
from sbp_core.cli.connect import STREAM, connect, find_stream, titled
from sbp_core.cli.options import PATH, ClientOptions, client_options
from sbp_core.cli.output import show_time, write_json, write_line
from sbp_core.errors import NotFoundError

if TYPE_CHECKING:
    from sbp_core.client import SchemaVersion, StreamInfo
    from sbp_core.records import Difference

_AS_IS: Final = "as it is"
_WITH_MERGE: Final = "with mergeSchema=true"


schema: Final = Actions("schema", help="Look at the schemas of typed streams.")

_stream: Final = click.argument("stream", type=STREAM, metavar="NAME_OR_ID")


@schema.command("show", example="sbp schema show orders")
@_stream
@client_options
def show(options: ClientOptions, stream: str) -> int:
    """Show the columns of the newest version."""
    from sbp_core.client import newest_schemas
    from sbp_core.records import field_text

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
    from sbp_core.cli.file_schema import read_file_schema
    from sbp_core.client import newest_schemas
    from sbp_core.records import Change, StreamSchema, compare_schemas

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
    from sbp_core.records import compare_schemas, field_text

    if before is None:
        return [f"+ column {field_text(field)}" for field in version.schema.arrow]
    return list(map(str, compare_schemas(before.schema, version.schema).differences))


def _described(info: StreamInfo, version: SchemaVersion) -> dict[str, object]:
    from sbp_core.records import field_text

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
