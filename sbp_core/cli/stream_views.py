"""`sbp streams list` and `sbp streams describe`: what the servers know of streams."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from sbp_core import limits
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import STREAM, connect, find_reach, find_sizes, parse_stream, titled
from sbp_core.cli.group_lag import show_age
from sbp_core.cli.options import ClientOptions, client_options
from sbp_core.cli.output import one_line, show_time, write_json, write_line, write_table
from sbp_core.errors import NotFoundError, PermissionDeniedError, SchemaError
from sbp_core.quantities import round_size, show_retention

if TYPE_CHECKING:
    from sbp_core.app.positions import Selection
    from sbp_core.client import Client, RangeInfo, Reach, SchemaVersion, StreamInfo

_HEADING = ("ID", "NAME", "RECORDS", "SIZE", "LAST APPEND", "REPLICAS", "RETENTION", "CREATED")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A stream; None is what its servers did not tell.

    `appended_at_ms` is None for an empty stream, too.
    """

    info: StreamInfo
    at: Reach
    size_bytes: int | None
    appended_at_ms: int | None

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no records."""
        return self.at.next_offset == self.at.start_offset

    def as_object(self) -> dict[str, object]:
        """Return the stream for programs."""
        return {
            **asdict(self.info),
            "start_offset": self.at.start_offset,
            "next_offset": self.at.next_offset,
            "stored_bytes": self.size_bytes,
            "last_append_ms": self.appended_at_ms,
        }

    def as_row(self, now_ms: int) -> tuple[object, ...]:
        """Return the stream for people."""
        held = self.at.readable_end - self.at.start_offset
        return (
            self.info.stream_id,
            self.info.name or "-",
            held if self.at.next_offset is not None else f">={held}",
            "-" if self.size_bytes is None else round_size(self.size_bytes),
            self._last_append(now_ms),
            self.info.replica_count,
            show_retention(self.info.retention_period_ms, self.info.retention_bytes),
            show_time(self.info.created_at_ms),
        )

    def _last_append(self, now_ms: int) -> str:
        if self.is_empty:
            return "-"
        return "unknown" if self.appended_at_ms is None else show_age(self.appended_at_ms, now_ms)


@click.command("list", cls=Command, example="sbp streams list 'orders-*'")
@click.argument("patterns", type=STREAM, nargs=-1, metavar="[PATTERN]...")
@client_options
def list_streams(options: ClientOptions, patterns: Sequence[str]) -> int:
    """List streams, by id: all, or those with these names, or that match orders-*."""
    from sbp_core.app.positions import Selection

    selection = Selection.of(patterns) if patterns else None
    with connect(options) as client:
        found = _find(client, selection)
    if options.json:
        for each in found:
            write_json(each.as_object())
        return 0
    now_ms = time.time_ns() // 1_000_000
    write_table(_HEADING, [each.as_row(now_ms) for each in found])
    return 0


def _find(client: Client, selection: Selection | None) -> list[_Listed]:
    """Return the streams that are wanted, with what their servers say soon."""
    while True:
        listed = client.list_streams()
        infos = listed if selection is None else selection.of_streams(listed)
        stream_ids = [each.stream_id for each in infos]
        try:
            reaches, sizes = find_reach(client, stream_ids), find_sizes(client, stream_ids)
            times = _last_appends(client, reaches.values())
        except NotFoundError:
            continue  # one was deleted in between
        return [
            _Listed(each, reaches[key], sizes.get(key), times.get(key))
            for key, each in zip(stream_ids, infos, strict=True)
        ]


def _last_appends(client: Client, reaches: Iterable[Reach]) -> dict[int, int | None]:
    """Return when the last records were appended, by stream id, where servers tell it soon.

    One stream that the caller may not read leaves all times unknown.
    """
    lasts = {
        each.stream_id: each.next_offset - 1
        for each in reaches
        if each.next_offset is not None and each.next_offset > each.start_offset
    }
    try:
        return client.append_times(lasts, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    except PermissionDeniedError:
        return {}


@click.command("describe", cls=Command, example="sbp streams describe orders")
@click.argument("refs", type=STREAM, nargs=-1, required=True, metavar="NAME_OR_ID")
@client_options
def describe_streams(options: ClientOptions, refs: Sequence[str]) -> int:
    """Show the metadata, offsets and ranges of streams."""
    with connect(options) as client:
        infos = client.describe_streams([parse_stream(text) for text in refs])
        stream_ids = [info.stream_id for info in infos]
        reaches = find_reach(client, stream_ids)
        sizes = find_sizes(client, stream_ids)
        ranges = client.list_ranges(stream_ids)
        schemas = _newest_schemas(client, stream_ids)
        properties = client.describe_properties(stream_ids)
    for info in infos:
        at, schema = reaches[info.stream_id], schemas.get(info.stream_id)
        if options.json:
            described = {
                **_described(info, at, sizes),
                "properties": properties[info.stream_id],
            }
            _write_described(described, at, schema, ranges[info.stream_id])
        else:
            _write_stream(info, at, sizes.get(info.stream_id), schema)
            for key, value in properties[info.stream_id].items():
                write_line(f"  property   {key} = {one_line(value)}")
            _write_ranges(ranges[info.stream_id])
    return 0


def _described(info: StreamInfo, at: Reach, sizes: Mapping[int, int]) -> dict[str, object]:
    """Return a stream as an object; what is not known is null."""
    held = {"start_offset": at.start_offset, "next_offset": at.next_offset}
    return {**asdict(info), **held, "stored_bytes": sizes.get(info.stream_id)}


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else round_size(size_bytes)


def _write_described(
    described: Mapping[str, object],
    at: Reach,
    schema: SchemaVersion | SchemaError | None,
    ranges: tuple[RangeInfo, ...],
) -> None:
    """Write a stream as an object, with its schema and its ranges."""
    missing = [{**asdict(each), "error": str(each.error)} for each in at.unavailable]
    shown = [{**asdict(each), "next_offset": _maybe_end(each, at)} for each in ranges]
    write_json({**described, **_described_schema(schema), "ranges": shown, "unavailable": missing})


def _maybe_end(piece: RangeInfo, at: Reach) -> int | None:
    """Return where a range ends, by its server: the placement driver does not know that if open."""
    if piece.end_offset is not None:
        return piece.end_offset
    return None if at.next_offset is None else max(piece.start_offset, at.next_offset)


def _newest_schemas(
    client: Client, stream_ids: Sequence[int]
) -> dict[int, SchemaVersion | SchemaError]:
    """Return each stream's newest schema, or why it cannot be read: it may be a later release's."""
    from sbp_core.client import newest_schemas

    found: dict[int, SchemaVersion | SchemaError] = {}
    try:
        found.update(newest_schemas(client, stream_ids))
    except SchemaError:
        for stream_id in stream_ids:
            try:
                found.update(newest_schemas(client, [stream_id]))
            except SchemaError as error:
                found[stream_id] = error
    return found


def _described_schema(schema: SchemaVersion | SchemaError | None) -> dict[str, object]:
    match schema:
        case None:
            return {"schema_version": None}
        case SchemaError():
            return {"schema_version": None, "schema_error": str(schema)}
    return {"schema_version": schema.version}


def _write_stream(
    info: StreamInfo,
    at: Reach,
    size_bytes: int | None,
    schema: SchemaVersion | SchemaError | None,
) -> None:
    write_line(titled(info))
    known_end, is_known = at.readable_end, at.next_offset is not None
    write_line(f"  records    {'' if is_known else 'at least '}{known_end - at.start_offset}")
    beyond = "" if is_known else ", and perhaps more"
    write_line(f"  offsets    {at.start_offset} to {known_end}, exclusive{beyond}")
    for each in at.unavailable:
        upto = "on" if each.end_offset is None else f"to {each.end_offset}, exclusive"
        server = each.server or "its server"
        write_line(
            f"  down       {server}: records from {each.start_offset} {upto} cannot be read now"
            f" ({one_line(str(each.error))})"
        )
    write_line(f"  size       {_size(size_bytes)}")
    write_line(f"  replicas   {show_replicas(info)}")
    write_line(f"  retention  {retention_of(info)}")
    write_line(f"  created    {show_time(info.created_at_ms)}")
    if isinstance(schema, SchemaError):
        write_line(f"  schema     {one_line(str(schema))}")
    elif schema is not None:
        from sbp_core.records.stream_schema import name_text

        columns = ", ".join(map(name_text, schema.schema.arrow.names))
        write_line(f"  schema     version {schema.version}: {columns}")


def _write_ranges(ranges: tuple[RangeInfo, ...]) -> None:
    for piece in ranges:
        end = "open" if piece.end_offset is None else f"sealed at {piece.end_offset}"
        write_line(
            f"  range {piece.range_index}    from {piece.start_offset}, {end},"
            f" on {', '.join(piece.servers) or 'no server'}"
        )


def show_replicas(info: StreamInfo) -> str:
    """Return how many replicas a stream has, and how many of them acknowledge a record."""
    if info.replica_count <= 1:
        return str(info.replica_count)
    return f"{info.replica_count} (acknowledged by {info.ack_count})"


def retention_of(info: StreamInfo) -> str:
    """Return how long, and how much of, a stream is kept."""
    return show_retention(info.retention_period_ms, info.retention_bytes)
