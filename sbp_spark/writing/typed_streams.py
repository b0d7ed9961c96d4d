"""The schemas of the streams that columns are written to: looked at, made, let grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.client import Client, SchemaVersion
from sbp_core.errors import ConfigurationError, SchemaError, UnsupportedError
from sbp_core.records import Change, Comparison, StreamSchema, compare_schemas
from sbp_spark.reporting import listed

ON_BAD_RECORD: Final = "option onBadRecord"
"""Where the stream of dead letters is named."""


@dataclass(frozen=True, slots=True)
class TypedStream:
    """A stream as options name it, and the schema that it is written in."""

    name: str
    schema: StreamSchema


def check_plain(client: Client, streams: Mapping[int, str], where: str) -> None:
    """Raise ConfigurationError if any of the streams, named by ids `where`, has a schema."""
    typed = typed_among(client, streams)
    if typed:
        raise typed_error([streams[stream_id] for stream_id in typed], where)


def typed_among(client: Client, stream_ids: Iterable[int]) -> list[int]:
    """Return those of the streams that have a schema. Raises NotFoundError."""
    asked = list(stream_ids)
    if not asked:
        return []
    try:
        described = client.describe_schemas(asked, newest_only=True)
    except UnsupportedError:
        return []  # where nobody knows schemas, no stream has one
    return [stream_id for stream_id, versions in described.items() if versions]


def typed_error(names: Sequence[str], where: str) -> ConfigurationError:
    """Return the error of plain records for typed streams, which were named `where`."""
    told = f"{where}: stream {listed(list(map(repr, names)))} has a schema"
    if where == ON_BAD_RECORD:
        return ConfigurationError(
            f"{told}, but dead letters are plain records; name a stream without one"
        )
    return ConfigurationError(
        f"{told}, so columns are written to it, not plain records; set encoding=columns, or name a"
        " stream without a schema"
    )


def check_still_plain(client: Client, stream_ids: Iterable[int]) -> None:
    """Raise SchemaError if a stream has got a schema since plain records were staged for it."""
    typed = typed_among(client, stream_ids)
    if typed:
        raise SchemaError(
            f"stream {listed(typed)} (by id) has got a schema since plain records were staged for"
            " it, and the two do not mix, so nothing is committed; write columns to it, or write"
            " these records to another stream"
        )


def evolve_streams(
    client: Client,
    streams: Mapping[int, str],
    given: StreamSchema,
    *,
    may_change: bool,
) -> dict[int, TypedStream]:
    """Let columns of `given` fit into streams, names by id: those without a schema get this one.

    A schema that lacks some of it grows if it `may_change`. Where columns may be null that a stream
    requires, and that is all, it need not: rows are looked at one by one. Return the streams, which
    take all of the columns. Raises SchemaError, and has changed nothing if that was to be foreseen.
    """
    found = {}
    described = _newest(client, streams)
    untyped = [stream_id for stream_id in streams if stream_id not in described]
    _check_empty(client, untyped, streams)
    for stream_id, version in described.items():
        _compare(streams[stream_id], version, given, may_change=may_change)
    for stream_id, name in streams.items():
        newest = described.get(stream_id) or client.register_schema(stream_id, given, version=1)
        compared = _compare(name, newest, given, may_change=may_change)
        if may_change and compared.differences:
            newest = client.evolve_schema(stream_id, given, may_change=True)
        found[stream_id] = TypedStream(name, newest.schema)
    return found


def _newest(client: Client, stream_ids: Iterable[int]) -> dict[int, SchemaVersion]:
    """Return the newest version of each stream that has any. Raises ConfigurationError."""
    try:
        described = client.describe_schemas(list(stream_ids), newest_only=True)
    except UnsupportedError as error:
        raise ConfigurationError(
            f"option encoding: the placement driver knows no schemas ({error}); bring it up to"
            " date, or write plain records with encoding=rows"
        ) from error
    return {stream_id: versions[-1] for stream_id, versions in described.items() if versions}


def _check_empty(client: Client, stream_ids: Sequence[int], names: Mapping[int, str]) -> None:
    """Raise SchemaError if any of the streams, which have no schema, has records."""
    bounds = client.stream_bounds(stream_ids) if stream_ids else []
    full = [repr(names[each.stream_id]) for each in bounds if each.next_offset > each.start_offset]
    if full:
        raise SchemaError(
            f"stream {listed(full)} has plain records and no schema, and the two do not mix; create"
            " another stream for columns, or trim this one to its end"
        )


def _compare(
    name: str, newest: SchemaVersion, given: StreamSchema, *, may_change: bool
) -> Comparison:
    compared = compare_schemas(newest.schema, given)
    if compared.faults:
        remedy = (
            "Lines with ! say what fits in no case; for a column that is missing nulls do, if"
            " mergeSchema=true lets it have them"
        )
    elif may_change or all(each.change is Change.RELAXED for each in compared.differences):
        return compared
    else:
        remedy = "To let its schema change so, set mergeSchema=true"
    lines = "\n".join(f"  {each}" for each in compared.differences)
    raise SchemaError(
        f"stream {name!r} does not take these columns as they are; its schema, version"
        f" {newest.version}, differs:\n{lines}\n{remedy}"
    )
