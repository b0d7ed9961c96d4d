"""`sbp schema`: the columns of typed streams, how they came to be, and whether others fit."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sbp_core.cli.connect import connect, find_stream, label, newest_versions
from sbp_core.cli.output import show_time, write_json, write_line
from sbp_core.cli.table_files import read_file_schema
from sbp_core.client import Client, SchemaVersion, StreamInfo
from sbp_core.errors import NotFoundError, StatusCode
from sbp_core.records import Change, Difference, StreamSchema, compare_schemas, field_text

_AS_IS: Final = "as it is"
_WITH_MERGE: Final = "with mergeSchema=true"


def show(options: Namespace) -> int:
    """Print the columns of a stream's newest schema."""
    with connect(options) as client:
        info = find_stream(client, options.stream)
        newest = newest_versions(client, [info.stream_id]).get(info.stream_id)
    if newest is None:
        raise _untyped(info)
    if options.json:
        write_json(_described(info, newest))
        return 0
    write_line(f"{_titled(info)}, version {newest.version} of {show_time(newest.registered_at_ms)}")
    for field in newest.schema.arrow:
        write_line(f"  {field_text(field)}")
    return 0


def history(options: Namespace) -> int:
    """List the versions of a stream's schema, the first one first."""
    with connect(options) as client:
        info = find_stream(client, options.stream)
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


def check(options: Namespace) -> int:
    """Tell whether Spark could write a file to a stream; 1 if not."""
    given = StreamSchema.of(read_file_schema(Path(options.file)))
    with connect(options) as client:
        info = find_stream(client, options.stream)
        newest = newest_versions(client, [info.stream_id]).get(info.stream_id)
        has_plain = newest is None and _has_records(client, info)
    if has_plain:
        return _tell(options, info, None, "it has plain records and no schema", [])
    if newest is None:
        return _tell(options, info, _AS_IS, "it gets the schema of what is written first", [])
    compared = compare_schemas(newest.schema, given)
    maybe_how: str | None = _AS_IS
    if compared.faults:
        maybe_how = None
    elif any(each.change is not Change.RELAXED for each in compared.differences):
        maybe_how = _WITH_MERGE
    return _tell(
        options, info, maybe_how, f"version {newest.version} of its schema", compared.differences
    )


def _has_records(client: Client, info: StreamInfo) -> bool:
    (bounds,) = client.stream_bounds([info.stream_id])
    return bounds.next_offset > bounds.start_offset


def _tell(
    options: Namespace,
    info: StreamInfo,
    maybe_how: str | None,
    basis: str,
    differences: Sequence[Difference],
) -> int:
    """Print what comes of a comparison; return the exit code. `maybe_how` it fits, if it does."""
    if options.json:
        found = [{"change": each.change.name, "text": each.text} for each in differences]
        write_json({"stream": label(info), "fits": maybe_how, "differences": found})
    else:
        for each in differences:
            write_line(f"  {each}")
        fits = "does not fit" if maybe_how is None else f"fits {maybe_how}"
        write_line(f"{options.file} {fits} into {_titled(info)}: {basis}")
    return 1 if maybe_how is None else 0


def _changes(before: SchemaVersion | None, version: SchemaVersion) -> list[str]:
    if before is None:
        return [f"+ column {field_text(field)}" for field in version.schema.arrow]
    return list(map(str, compare_schemas(before.schema, version.schema).differences))


def _described(info: StreamInfo, version: SchemaVersion) -> dict[str, object]:
    return {
        "stream": label(info),
        "stream_id": info.stream_id,
        "version": version.version,
        "registered_at_ms": version.registered_at_ms,
        "fingerprint": version.schema.fingerprint,
        "columns": [field_text(field) for field in version.schema.arrow],
    }


def _titled(info: StreamInfo) -> str:
    return f"{label(info)} (id {info.stream_id})"


def _untyped(info: StreamInfo) -> NotFoundError:
    return NotFoundError(
        StatusCode.NOT_FOUND,
        f"{_titled(info)} has no schema: its records are plain, or none was written yet",
    )
