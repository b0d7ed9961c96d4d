"""`sbp streams`: create, list, describe, change and delete streams."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from sbp_core import limits
from sbp_core.access.rights import is_reserved
from sbp_core.cli.connect import (
    connect,
    find_reach,
    find_sizes,
    find_stream,
    parse_stream,
    titled,
)
from sbp_core.cli.output import (
    one_line,
    show_time,
    write_json,
    write_line,
    write_notice,
    write_result,
    write_table,
)
from sbp_core.cli.parsing import (
    Actions,
    parse_duration_ms,
    parse_number,
    parse_positive,
    parse_size,
)
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
from sbp_core.errors import ConfigurationError, NotFoundError, SchemaError
from sbp_core.quantities import round_size, show_retention
from sbp_core.records.stream_schema import name_text


def add_streams(parser: ArgumentParser) -> None:
    """Declare `sbp streams` and its actions."""
    actions = Actions(parser)
    add = partial(actions.add, is_client=True)
    creating = add("create", create, help="create a stream")
    creating.add_argument("name")
    creating.add_argument(
        "--count",
        type=parse_positive,
        metavar="N",
        help="create N streams: NAME-0 to NAME-(N-1)",
    )
    _add_replicas(creating, 1, "copies of its records, each on a range server (default: 1)")
    _add_retention(creating, 0)
    listing = add("list", list_all, help="list all streams")
    listing.add_argument("--all", action="store_true", help="also those whose names begin with _")
    for action in (
        add("describe", describe, help="show the metadata, offsets and ranges of streams"),
        add("delete", delete, help="delete streams"),
    ):
        action.add_argument("streams", nargs="+", metavar="NAME_OR_ID")
    _add_changes(add)


def _add_changes(add: Callable[..., ArgumentParser]) -> None:
    updating = add("update", update, help="change a stream's replicas, retention or name")
    trimming = add(
        "trim",
        trim,
        help="remove the records below an offset",
        description="Remove the records of a stream below OFFSET permanently. Readers below it get"
        " an error with the new start of the stream. OFFSET may not be beyond the end of the"
        " stream.",
    )
    sealing = add(
        "seal",
        seal,
        help="continue a stream in a new range",
        description="Seal the open range of a stream and open the next one, on another server where"
        " that is less loaded. Writers and readers follow by themselves.",
    )
    for action in (updating, trimming, sealing):
        action.add_argument("stream", metavar="NAME_OR_ID")
    trimming.add_argument("offset", type=parse_number, metavar="OFFSET")
    _add_replicas(
        updating,
        None,
        "copies of the records that are appended from now on, each on a range server: the stream"
        " goes on in a new range",
    )
    _add_retention(updating, None)
    updating.add_argument("--rename", metavar="NEW", help="the stream's new name")


def _add_replicas(parser: ArgumentParser, default: int | None, text: str) -> None:
    add = partial(parser.add_argument, type=parse_positive, metavar="N")
    add("--replicas", default=default, help=text)
    add(
        "--ack-count",
        help="copies that have to be stored before a record is acknowledged (default: the majority"
        " of the copies)",
    )


def _add_retention(parser: ArgumentParser, default: int | None) -> None:
    parser.add_argument(
        "--retention",
        type=parse_duration_ms,
        default=default,
        metavar="TIME",
        help="how long records are kept, such as 90s, 30m, 12h or 7d; 0 is for ever",
    )
    parser.add_argument(
        "--retention-size",
        type=parse_size,
        default=default,
        metavar="SIZE",
        help="how much of the stream a range server keeps, such as 500MiB or 10GiB; beyond it the"
        " oldest records are removed; 0 is no limit",
    )


def create(options: Namespace) -> int:
    """Create NAME, or NAME-0 to NAME-(count-1); show those that are, also if others are refused."""
    names: list[str] = [options.name]
    if options.count is not None:
        if options.count > limits.STREAMS_PER_REQUEST_MAX:
            raise ConfigurationError(
                f"--count {options.count} is more than {limits.STREAMS_PER_REQUEST_MAX}, the limit"
                " of a request; create them in several calls"
            )
        names = [f"{options.name}-{index}" for index in range(options.count)]
    _check_name(names[0])
    specs = [
        StreamSpec(
            name,
            replica_count=options.replicas,
            retention_period_ms=options.retention,
            retention_bytes=options.retention_size,
            ack_count=options.ack_count or 0,
        )
        for name in names
    ]

    def show(info: StreamInfo) -> None:
        text = f"created {titled(info)}"
        write_result(asdict(info), text, is_json=options.json)

    with connect(options) as client:
        client.create_streams(specs, on_created=show)
        _warn_of_missing(client, options.replicas)
    return 0


def _warn_of_missing(client: Client, replica_count: int) -> None:
    missing = client.explain_missing(replica_count)
    if missing is not None:
        write_notice(missing)


def list_all(options: Namespace) -> int:
    """List all streams, by id; those of the cluster itself only if they are wanted."""
    with connect(options) as client:
        infos, reaches, sizes = _find_all(client, with_reserved=options.all)
    if options.json:
        for info in infos:
            write_json(_described(info, reaches[info.stream_id], sizes))
        return 0
    rows = [
        (
            info.stream_id,
            info.name or "-",
            _maybe_count(reaches[info.stream_id]),
            _size(sizes.get(info.stream_id)),
            info.replica_count,
            _retention(info),
            show_time(info.created_at_ms),
        )
        for info in infos
    ]
    write_table(("ID", "NAME", "RECORDS", "SIZE", "REPLICAS", "RETENTION", "CREATED"), rows)
    return 0


def _find_all(
    client: Client, *, with_reserved: bool
) -> tuple[list[StreamInfo], dict[int, Reach], dict[int, int]]:
    """Return all streams, and how far they can be read and their bytes, both by id."""
    while True:
        listed = client.list_streams()
        infos = [each for each in listed if with_reserved or not is_reserved(each.name)]
        stream_ids = [each.stream_id for each in infos]
        try:
            return infos, find_reach(client, stream_ids), find_sizes(client, stream_ids)
        except NotFoundError:
            continue  # one was deleted in between


def describe(options: Namespace) -> int:
    """Show each stream's metadata, offsets and ranges."""
    with connect(options) as client:
        infos = client.describe_streams([parse_stream(text) for text in options.streams])
        stream_ids = [info.stream_id for info in infos]
        reaches = find_reach(client, stream_ids)
        sizes = find_sizes(client, stream_ids)
        ranges = client.list_ranges(stream_ids)
        schemas = _newest_schemas(client, stream_ids)
    for info in infos:
        at, schema = reaches[info.stream_id], schemas.get(info.stream_id)
        if options.json:
            _write_described(_described(info, at, sizes), at, schema, ranges[info.stream_id])
        else:
            _write_stream(info, at, sizes.get(info.stream_id), schema, ranges[info.stream_id])
    return 0


def _described(info: StreamInfo, at: Reach, sizes: Mapping[int, int]) -> dict[str, object]:
    """Return a stream as an object; what is not known is null."""
    held = {"start_offset": at.start_offset, "next_offset": at.next_offset}
    return {**asdict(info), **held, "stored_bytes": sizes.get(info.stream_id)}


def _maybe_count(at: Reach) -> str:
    held = at.readable_end - at.start_offset
    return str(held) if at.next_offset is not None else f">={held}"


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


def delete(options: Namespace) -> int:
    """Delete streams: all of them, or none if one does not exist."""
    refs = [parse_stream(text) for text in options.streams]
    with connect(options) as client:
        infos = list(dict.fromkeys(client.describe_streams(refs)))
        client.delete_streams([info.stream_id for info in infos])
    for info in infos:
        text = f"deleted {titled(info)}"
        write_result(asdict(info), text, is_json=options.json)
    return 0


def update(options: Namespace) -> int:
    """Change a stream's replicas, its retention, its name, or all of that."""
    change = StreamUpdate(
        parse_stream(options.stream),
        options.rename,
        options.retention,
        options.retention_size,
        options.replicas,
        options.ack_count,
    )
    if change == StreamUpdate(change.stream):
        raise ConfigurationError(
            "nothing to change: give --replicas, --ack-count, --retention, --retention-size or"
            " --rename"
        )
    if options.rename is not None:
        _check_name(options.rename)
    with connect(options) as client:
        (info,) = client.update_streams([change])
        if options.replicas is not None:
            _warn_of_missing(client, options.replicas)
    text = f"updated {titled(info)}: retention {_retention(info)}"
    if info.replica_count > 1:
        text += f", replicas {_replicas(info)}"
    write_result(asdict(info), text, is_json=options.json)
    return 0


def trim(options: Namespace) -> int:
    """Remove the records of a stream below an offset."""
    with connect(options) as client:
        info = find_stream(client, options.stream)
        client.trim_streams({info.stream_id: options.offset})
        (held,) = client.stream_bounds([info.stream_id])
    text = f"trimmed {titled(info)}: offsets {held.start_offset} to {held.next_offset}, exclusive"
    write_result({**asdict(info), **asdict(held)}, text, is_json=options.json)
    return 0


def seal(options: Namespace) -> int:
    """Continue a stream in a new range."""
    with connect(options) as client:
        info = find_stream(client, options.stream)
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


def _check_name(name: str) -> None:
    if name.isdigit():
        raise ConfigurationError(
            f"stream name {name!r} has only digits and would be taken for an id; choose another"
        )


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
    ranges: tuple[RangeInfo, ...],
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
