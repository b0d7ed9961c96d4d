"""`sbp streams`: create, update, trim, seal and delete streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Actions
from sbp_core.cli.confirming import is_confirmed, write_effects, yes_option
from sbp_core.cli.connect import (
    STREAM,
    checked_new_name,
    connect,
    find_reach,
    find_stream,
    parse_stream,
    titled,
)
from sbp_core.cli.moves import move
from sbp_core.cli.options import (
    DURATION_MS,
    NUMBER,
    POSITIVE,
    SIZE,
    ClientOptions,
    Value,
    client_options,
)
from sbp_core.cli.output import one_line, write_notice, write_result
from sbp_core.cli.stream_copy import copy
from sbp_core.cli.stream_views import describe_streams, list_streams, retention_of, show_replicas
from sbp_core.errors import ConfigurationError, NoRangeServerError, SbpError
from sbp_core.lake import TABLE_PROPERTY, TRIM_PROPERTY
from sbp_core.operating.stream_position import Position, PositionKind, find_offset
from sbp_core.quantities import parse_duration_ms, quoted
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import Client, Reach, StreamInfo


def check_lake(client: Client, ref: int | str, table: str) -> None:
    """Raise ConfigurationError or SchemaError if a stream cannot land in a table."""
    from sbp_core.lake.columns import check_table_name, table_schema

    check_table_name(table)
    (info,) = client.describe_streams([ref])
    for newest in client.describe_schemas([info.stream_id])[info.stream_id][-1:]:
        table_schema(newest.schema.arrow)


def properties_of(client: Client, ref: int | str) -> dict[str, str]:
    """Return the properties of a stream by key. Raises NotFoundError."""
    (info,) = client.describe_streams([ref])
    return client.describe_properties([info.stream_id])[info.stream_id]


def named_once(present: Sequence[tuple[str, str]], absent: Sequence[str]) -> dict[str, str | None]:
    """Return properties by key, None if absent. Raises ConfigurationError for a key named twice."""
    found: dict[str, str | None] = {**dict(present), **dict.fromkeys(absent)}
    if len(found) < len(present) + len(absent):
        raise ConfigurationError("a property is named twice; name each once")
    return found


def _trim_age(text: str) -> str:
    return text if text == "off" else str(parse_duration_ms(text))


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


@streams.command("create", example="sbp streams create orders --replicas 3 --retention 7d")
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

    Streams that are created are shown, also if others are refused.
    """
    from sbp_core.client import StreamSpec

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
streams.add_command(describe_streams)


streams.add_command(copy)
streams.add_command(move)


@streams.command("delete", example="sbp streams delete orders clicks")
@click.argument("refs", type=STREAM, nargs=-1, required=True, metavar=_NAME_OR_ID)
@yes_option
@client_options
def delete(options: ClientOptions, refs: Sequence[str], *, yes: bool) -> int:
    """Delete streams: all of them, or none.

    Without --yes it is shown what would happen. On a terminal the command then asks whether to go
    on.
    """
    parsed = [parse_stream(text) for text in refs]
    with connect(options) as client:
        infos = list(dict.fromkeys(client.describe_streams(parsed)))
        stream_ids = [info.stream_id for info in infos]
        if not yes:
            reaches = find_reach(client, stream_ids)
            effects = [
                (asdict(info), [f"would delete {titled(info)}: {_extent(reaches[info.stream_id])}"])
                for info in infos
            ]
            if not is_confirmed(effects, "deleted", is_json=options.json):
                return 0
        client.delete_streams(stream_ids)
    effects = [(asdict(info), [f"deleted {titled(info)}"]) for info in infos]
    write_effects(effects, "deleted", is_done=True, is_json=options.json)
    return 0


def _extent(at: Reach) -> str:
    """Return how many records a stream has, as far as the servers that answer know."""
    least = "at least " if at.next_offset is None else ""
    return f"{least}{counted(at.readable_end - at.start_offset, 'record')}"


@streams.command("update", example="sbp streams update orders --retention 30d")
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
@click.option(
    "--trim-after-lake",
    "trim_after",
    type=Value("AGE|off", _trim_age),
    help="Let `sbp lake` trim records that have landed and were appended so long ago, such as 1h.",
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
    trim_after: str | None,
) -> int:
    """Change a stream's replicas, retention, name or properties, or all of that at once."""
    from sbp_core.client import StreamUpdate

    for key, given in ((TABLE_PROPERTY, lake), (TRIM_PROPERTY, trim_after)):
        if given == "off":
            removed = [*removed, key]
        elif given is not None:
            properties = [*properties, (key, given)]
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
            " --rename, --lake, --trim-after-lake, --property or --remove-property"
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
    text = f"updated {titled(info)}: retention {retention_of(info)}"
    if info.replica_count > 1:
        text += f", replicas {show_replicas(info)}"
    for key, value in changed.items():
        gone = "removed" if key in before else "is not there"
        text += f", {key} {gone}" if value is None else f", {key} = {one_line(value)}"
    write_result(asdict(info), text, is_json=options.json)
    return 0


@streams.command("trim", example="sbp streams trim orders 5000")
@click.argument("stream", type=STREAM, metavar=_NAME_OR_ID)
@click.argument("offset", type=NUMBER, metavar="OFFSET")
@yes_option
@client_options
def trim(options: ClientOptions, stream: str, offset: int, *, yes: bool) -> int:
    """Remove the records of a stream below OFFSET permanently.

    Without --yes it is shown what would happen. On a terminal the command then asks whether to go
    on. Readers below OFFSET get an error with the new start of the stream. OFFSET may not be beyond
    the end of the stream.
    """
    from sbp_core.client import Reach

    with connect(options) as client:
        info = find_stream(client, stream)
        if not yes:
            (held,) = client.stream_bounds([info.stream_id])
            start, end = held.start_offset, held.next_offset
            kept_from = Position(PositionKind.OFFSET, max(offset, start))
            find_offset(kept_from, Reach(info.stream_id, start, end))
            text = (
                f"would remove {counted(max(offset - start, 0), 'record')} of {titled(info)}: it"
                f" has offsets {start} to {end}, exclusive"
            )
            effects = [({**asdict(info), **asdict(held)}, [text])]
            if not is_confirmed(effects, "removed", is_json=options.json):
                return 0
        client.trim_streams({info.stream_id: offset})
        (held,) = client.stream_bounds([info.stream_id])
    text = f"trimmed {titled(info)}: offsets {held.start_offset} to {held.next_offset}, exclusive"
    effects = [({**asdict(info), **asdict(held)}, [text])]
    write_effects(effects, "removed", is_done=True, is_json=options.json)
    return 0


@streams.command("seal", example="sbp streams seal orders")
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
