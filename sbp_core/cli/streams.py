"""`sbp streams`: create, describe, change and delete streams; others are beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

import click

from sbp_core import limits
from sbp_core.cli.client_options import ClientOptions, client_options
from sbp_core.cli.commands import Actions
from sbp_core.cli.confirming import write_effects, yes_option
from sbp_core.cli.connect import (
    checked_new_name,
    connect,
    find_reach,
    find_sizes,
    find_stream,
    parse_stream,
    titled,
)
from sbp_core.cli.moves import move
from sbp_core.cli.output import (
    one_line,
    show_time,
    write_json,
    write_line,
    write_notice,
    write_result,
)
from sbp_core.cli.stream_copy import copy
from sbp_core.cli.stream_list import list_streams
from sbp_core.cli.stream_properties import check_lake, named_once, properties_of
from sbp_core.cli.values import DURATION_MS, NUMBER, POSITIVE, SIZE, STREAM, Value
from sbp_core.client import (
    Client,
    RangeInfo,
    Reach,
    SchemaVersion,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    newest_schemas,
)
from sbp_core.errors import ConfigurationError, NoRangeServerError, SbpError, SchemaError
from sbp_core.lake import TABLE_PROPERTY
from sbp_core.operating.stream_position import Position, PositionKind, find_offset
from sbp_core.quantities import quoted, round_size, show_retention
from sbp_core.records.stream_schema import name_text
from sbp_core.wording import counted

streams: Final = Actions("streams", help="Create, list, describe, copy, change and delete streams.")

_NAME_OR_ID: Final = "NAME_OR_ID"
_ack_count: Final = click.option(
    "--ack-count",
    type=POSITIVE,
    help="Copies that have to be stored before a record is acknowledged. [default: the majority of"
    " the copies]",
)
_retention_option: Final = click.option(
    "--retention",
    type=DURATION_MS,
    help="How long records are kept, such as 90s, 30m, 12h or 7d; 0 is for ever.",
)
_retention_size: Final = click.option(
    "--retention-size",
    type=SIZE,
    help="How much of the stream a range server keeps, such as 500MiB or 10GiB; beyond it the"
    " oldest records are removed; 0 is no limit.",
)


def _parse_property(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"{quoted(text)} is not KEY=VALUE; KEY= is the empty value")
    return key, value


_PROPERTY: Final = Value("KEY=VALUE", _parse_property)
_property_option: Final = click.option(
    "--property",
    "properties",
    type=_PROPERTY,
    multiple=True,
    help="A property of the stream, up to 64; may be repeated. KEY= is the empty value.",
)


@streams.command("create")
@click.argument("name")
@click.option("--count", type=POSITIVE, help="Create N streams: NAME-0 to NAME-(N-1).")
@click.option(
    "--replicas",
    type=POSITIVE,
    default=1,
    help="Copies of its records, each on a range server. [default: 1]",
)
@_ack_count
@_retention_option
@_retention_size
@_property_option
@click.option(
    "--if-missing", is_flag=True, help="Leave streams that exist as they are, without an error."
)
@client_options
def create(
    options: ClientOptions,
    name: str,
    *,
    if_missing: bool,
    count: int | None,
    replicas: int,
    ack_count: int | None,
    retention: int | None,
    retention_size: int | None,
    properties: Sequence[tuple[str, str]],
) -> int:
    """Create a stream, or several.

    Those that are created are shown, also if others are refused.
    """
    names = [name]
    if count is not None:
        if count > limits.STREAMS_PER_REQUEST_MAX:
            raise ConfigurationError(
                f"--count {count} is more than {limits.STREAMS_PER_REQUEST_MAX}, the limit of a"
                " request; create them in several calls"
            )
        names = [f"{name}-{index}" for index in range(count)]
    checked_new_name(names[0])
    named_once(properties, ())
    specs = [
        StreamSpec(
            each,
            replica_count=replicas,
            retention_period_ms=retention or 0,
            retention_bytes=retention_size or 0,
            ack_count=ack_count or 0,
            properties=dict(properties),
        )
        for each in names
    ]

    def show(info: StreamInfo) -> None:
        text = f"created {titled(info)}"
        write_result(asdict(info), text, is_json=options.json)

    with connect(options) as client:
        _check_replicas(client, replicas, ack_count)
        if if_missing:
            existing = {info.name for info in client.find_streams(names)}
            specs = [spec for spec in specs if spec.name not in existing]
        client.create_streams(specs, on_created=show)
        _warn_of_missing(client, replicas)
    return 0


def _check_replicas(client: Client, replica_count: int, ack_count: int | None) -> None:
    """Raise NoRangeServerError if the cluster never had the servers that acknowledge a record.

    The placement driver would let the command wait for their heartbeats.
    """
    if replica_count <= 1:
        return
    try:
        known_count = len(client.describe_cluster().range_servers)
    except SbpError:  # only administrators may ask
        return
    needed_count = ack_count or replica_count // 2 + 1
    if known_count < needed_count:
        option = "--replicas" if ack_count is None else "--ack-count"
        raise NoRangeServerError.of(
            f"--replicas {replica_count} needs {counted(needed_count, 'range server')} that store a"
            f" record before it is acknowledged, and the cluster has {known_count}: start more"
            f" range servers, or lower {option}"
        )


def _warn_of_missing(client: Client, replica_count: int) -> None:
    missing = client.explain_missing(replica_count)
    if missing is not None:
        write_notice(missing)


streams.add_command(list_streams)


@streams.command("describe")
@click.argument("refs", type=STREAM, nargs=-1, required=True, metavar=_NAME_OR_ID)
@client_options
def describe(options: ClientOptions, refs: Sequence[str]) -> int:
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


streams.add_command(copy)
streams.add_command(move)


@streams.command("delete")
@click.argument("refs", type=STREAM, nargs=-1, required=True, metavar=_NAME_OR_ID)
@yes_option
@client_options
def delete(options: ClientOptions, refs: Sequence[str], *, yes: bool) -> int:
    """Delete streams: all of them, or none. Without --yes it is only shown what would happen."""
    parsed = [parse_stream(text) for text in refs]
    with connect(options) as client:
        infos = list(dict.fromkeys(client.describe_streams(parsed)))
        if yes:
            client.delete_streams([info.stream_id for info in infos])
            texts = [f"deleted {titled(info)}" for info in infos]
        else:
            reaches = find_reach(client, [info.stream_id for info in infos])
            texts = [
                f"would delete {titled(info)}: {_extent(reaches[info.stream_id])}" for info in infos
            ]
    effects = [(asdict(info), [text]) for info, text in zip(infos, texts, strict=True)]
    write_effects(effects, "deleted", is_done=yes, is_json=options.json)
    return 0


def _extent(at: Reach) -> str:
    """Return how many records a stream has, as far as the servers that answer know."""
    least = "at least " if at.next_offset is None else ""
    return f"{least}{counted(at.readable_end - at.start_offset, 'record')}"


@streams.command("update")
@click.argument("stream", type=STREAM, metavar=_NAME_OR_ID)
@click.option(
    "--replicas",
    type=POSITIVE,
    help="Copies of the records that are appended from now on, each on a range server: the stream"
    " goes on in a new range.",
)
@_ack_count
@_retention_option
@_retention_size
@click.option("--rename", metavar="NEW", help="The stream's new name.")
@_property_option
@click.option(
    "--remove-property",
    "removed",
    metavar="KEY",
    multiple=True,
    help="Remove a property; may be repeated.",
)
@click.option(
    "--if-property",
    "expected",
    type=_PROPERTY,
    multiple=True,
    help="Change nothing unless the stream has this property; may be repeated.",
)
@click.option(
    "--if-no-property",
    "unexpected",
    metavar="KEY",
    multiple=True,
    help="Change nothing if the stream has a property KEY; may be repeated.",
)
@click.option(
    "--lake",
    metavar="NAMESPACE.TABLE|off",
    help="Iceberg table in which `sbp lake` lands the stream: its property lake.table.",
)
@client_options
def update(
    options: ClientOptions,
    stream: str,
    *,
    replicas: int | None,
    ack_count: int | None,
    retention: int | None,
    retention_size: int | None,
    rename: str | None,
    properties: Sequence[tuple[str, str]],
    removed: Sequence[str],
    expected: Sequence[tuple[str, str]],
    unexpected: Sequence[str],
    lake: str | None,
) -> int:
    """Change a stream's replicas, retention, name or properties, or all of that at once."""
    removed = [*removed, TABLE_PROPERTY] if lake == "off" else removed
    if lake not in {None, "off"}:
        properties = [*properties, (TABLE_PROPERTY, lake)]
    changed = named_once(properties, removed)
    condition = named_once(expected, unexpected)
    change = StreamUpdate(
        *(parse_stream(stream), rename, retention, retention_size, replicas, ack_count),
        properties=changed,
        expected_properties=condition,
    )
    if change == StreamUpdate(change.stream, expected_properties=condition):
        raise ConfigurationError(
            "nothing to change: give --replicas, --ack-count, --retention, --retention-size,"
            " --rename, --lake, --property or --remove-property"
        )
    if rename is not None:
        checked_new_name(rename)
    with connect(options) as client:
        _check_replicas(client, replicas or 1, ack_count)
        if lake not in {None, "off"}:
            check_lake(client, change.stream, lake)
        before = properties_of(client, change.stream) if removed else {}
        (info,) = client.update_streams([change])
        if replicas is not None:
            _warn_of_missing(client, replicas)
    text = f"updated {titled(info)}: retention {_retention(info)}"
    if info.replica_count > 1:
        text += f", replicas {_replicas(info)}"
    for key, value in changed.items():
        gone = "removed" if key in before else "is not there"
        text += f", {key} {gone}" if value is None else f", {key} = {one_line(value)}"
    write_result(asdict(info), text, is_json=options.json)
    return 0


@streams.command("trim")
@click.argument("stream", type=STREAM, metavar=_NAME_OR_ID)
@click.argument("offset", type=NUMBER, metavar="OFFSET")
@yes_option
@client_options
def trim(options: ClientOptions, stream: str, offset: int, *, yes: bool) -> int:
    """Remove the records of a stream below OFFSET permanently.

    Without --yes it is only shown what would happen. Readers below OFFSET get an error with the new
    start of the stream. OFFSET may not be beyond the end of the stream.
    """
    with connect(options) as client:
        info = find_stream(client, stream)
        if yes:
            client.trim_streams({info.stream_id: offset})
        (held,) = client.stream_bounds([info.stream_id])
    start, end = held.start_offset, held.next_offset
    if not yes:
        find_offset(
            Position(PositionKind.OFFSET, max(offset, start)), Reach(info.stream_id, start, end)
        )
    text = (
        f"trimmed {titled(info)}: offsets {start} to {end}, exclusive"
        if yes
        else f"would remove {counted(max(offset - start, 0), 'record')} of {titled(info)}: it has"
        f" offsets {start} to {end}, exclusive"
    )
    effects = [({**asdict(info), **asdict(held)}, [text])]
    write_effects(effects, "removed", is_done=yes, is_json=options.json)
    return 0


@streams.command("seal")
@click.argument("stream", type=STREAM, metavar=_NAME_OR_ID)
@client_options
def seal(options: ClientOptions, stream: str) -> int:
    """Continue a stream in a new range.

    The open range is sealed, and the next one is opened, on another server where that is less
    loaded. Writers and readers follow by themselves.
    """
    with connect(options) as client:
        info = find_stream(client, stream)
        opened = client.seal_streams([info.stream_id])[info.stream_id]
    text = (
        f"sealed {titled(info)}: it continues in range {opened.range_index} from"
        f" {opened.start_offset}, on {', '.join(opened.servers) or 'no server'}"
    )
    write_result({**asdict(info), **asdict(opened)}, text, is_json=options.json)
    return 0


def _maybe_end(piece: RangeInfo, at: Reach) -> int | None:
    """Return where a range ends, by its server: the placement driver does not know that if open."""
    if piece.end_offset is not None:
        return piece.end_offset
    return None if at.next_offset is None else max(piece.start_offset, at.next_offset)


def _newest_schemas(
    client: Client, stream_ids: Sequence[int]
) -> dict[int, SchemaVersion | SchemaError]:
    """Return each stream's newest schema, or why it cannot be read: it may be a later release's."""
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
    write_line(f"  replicas   {_replicas(info)}")
    write_line(f"  retention  {_retention(info)}")
    write_line(f"  created    {show_time(info.created_at_ms)}")
    if isinstance(schema, SchemaError):
        write_line(f"  schema     {one_line(str(schema))}")
    elif schema is not None:
        columns = ", ".join(map(name_text, schema.schema.arrow.names))
        write_line(f"  schema     version {schema.version}: {columns}")


def _write_ranges(ranges: tuple[RangeInfo, ...]) -> None:
    for piece in ranges:
        end = "open" if piece.end_offset is None else f"sealed at {piece.end_offset}"
        write_line(
            f"  range {piece.range_index}    from {piece.start_offset}, {end},"
            f" on {', '.join(piece.servers) or 'no server'}"
        )


def _replicas(info: StreamInfo) -> str:
    if info.replica_count <= 1:
        return str(info.replica_count)
    return f"{info.replica_count} (acknowledged by {info.ack_count})"


def _retention(info: StreamInfo) -> str:
    return show_retention(info.retention_period_ms, info.retention_bytes)
