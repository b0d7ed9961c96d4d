"""`sbp checkpoint`: how far a query has read its streams, and rewinding it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from json import dumps
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli.commands import Actions
from sbp_core.cli.connect import connect
from sbp_core.cli.options import NUMBER, PATH, ClientOptions, TlsOptions, json_option, tls_options
from sbp_core.cli.output import write_json, write_line, write_lines, write_result, write_table
from sbp_core.errors import ConfigurationError
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import Client, StreamBounds, StreamInfo
    from sbp_spark.operations.checkpoint_files import Checkpoint, Rewind, SbpSource
    from sbp_spark.reading.offsets import StreamPosition

_HEADING: Final = ("ID", "STREAM", "READ TO", "BEGUN TO", "TAIL", "LAG", "")


checkpoint: Final = Actions(
    "checkpoint", help="Show the checkpoint of a Spark query, or rewind it."
)

_folder: Final = click.argument(
    "folder",
    type=PATH,
    metavar="DIR",
    help="The query's checkpointLocation, a local folder.",
)
_source: Final = click.option(
    "--source",
    metavar="NAME",
    help="Source of the query, if several read streams: the name given with readStream.name(), also"
    " of one that was removed, or the index of an unnamed source, from 0.",
)


@checkpoint.command("show", example="sbp checkpoint show /data/checkpoints/q")
@_folder
@click.option("--endpoint", metavar="HOST:PORT[,...]", help="Placement drivers to ask for tails.")
@_source
@tls_options
@json_option
def show(
    files: TlsOptions, folder: str, endpoint: str | None, source: str | None, *, json: bool
) -> int:
    """Show up to where a query has read each stream (committed).

    Also shown is the end of the batch that was begun last, and with --endpoint how far the query is
    behind.
    """
    from sbp_spark.operations.checkpoint_files import find_source, open_checkpoint

    opened = open_checkpoint(folder)
    found_source = find_source(opened, source)
    with _maybe_connect(endpoint, files) as client:
        found = measure(found_source, client)
        put_back = None if client is None else maybe_put_back(found_source, client)
    lost = [(batch, loss) for batch in opened.logged for loss in found_source.offset(batch).lost]
    if json:
        name = found_source.name
        write_json(
            {
                "query_id": opened.query_id,
                "logged": opened.logged,
                "committed": opened.committed,
                "source": int(name) if name.isdecimal() else name,
                "streams": [asdict(each) for each in found],
                "put_back": put_back,
                "lost": [{"batch": batch, **asdict(loss)} for batch, loss in lost],
            }
        )
        return 0
    _write_batches(found_source)
    write_table(_HEADING, [_row(each) for each in found])
    for batch, loss in lost:
        write_line(f"lost in batch {batch}: {loss.describe({})}")
    if put_back:
        write_line(
            "the placement driver's metadata lack a commit that the query has seen: its data"
            " directory was restored from an older copy, or this is another cluster"
        )
    return 0


def _maybe_connect(
    endpoint: str | None, files: TlsOptions
) -> AbstractContextManager[Client | None]:
    if endpoint is None:
        return nullcontext()
    return connect(ClientOptions(**asdict(files), endpoint=endpoint))


@checkpoint.command("rewind", example="sbp checkpoint rewind /data/checkpoints/q --batches 1 --yes")
@_folder
@click.option("--to-batch", type=NUMBER, help="The last one to keep.")
@click.option("--batches", type=NUMBER, metavar="K", help="Undo the last K committed ones.")
@click.option("--yes", is_flag=True, help="Confirm that no query runs on it.")
@json_option
def rewind(folder: str, to_batch: int | None, batches: int | None, *, yes: bool, json: bool) -> int:
    """Let a stopped query read the records after a batch again.

    The later batches of the checkpoint are moved aside, so that the query continues from there.
    First prints the batches that are repeated and the effect on sinks; changes nothing without
    --yes. The moved files are kept in a folder of the checkpoint.
    """
    from sbp_spark.operations.checkpoint_files import carry_out, open_checkpoint, plan_rewind

    if (to_batch is None) == (batches is None):
        raise click.UsageError("give --to-batch or --batches, one of them")
    opened = open_checkpoint(folder)
    plan = plan_rewind(opened, _target(opened, to_batch, batches))
    if not json:
        write_lines(_effects(opened, plan))
    if not yes:
        raise ConfigurationError(
            "nothing was changed: Spark does not lock checkpoints, so a running query cannot be"
            " detected; make sure that none runs on this one, on any machine, and add --yes"
        )
    kept_in = carry_out(plan)
    write_result(
        {
            "query_id": opened.query_id,
            "continues_after": plan.target,
            "undone": plan.undone,
            "kept_in": str(kept_in),
        },
        f"done; the files of the undone batches are kept in {kept_in}",
        is_json=json,
    )
    return 0


@checkpoint.command(
    "to-starting-offsets", example="sbp checkpoint to-starting-offsets /data/checkpoints/q"
)
@_folder
@click.option("--batch", type=NUMBER, help="Another committed batch.")
@_source
def to_starting_offsets(folder: str, batch: int | None, source: str | None) -> int:
    """Print where a query with a new checkpoint continues.

    That is the position after the last committed batch, for the option startingOffsets.
    """
    from sbp_spark.operations.checkpoint_files import find_source, open_checkpoint

    opened = open_checkpoint(folder)
    found = find_source(opened, source)
    chosen = found.last_committed if batch is None else batch
    if chosen is None:
        raise ConfigurationError(
            f"{opened.folder} has no committed batch: start the new query with the"
            " starting options of this one"
        )
    opened.check_committed(chosen)
    streams = found.decided_offset(chosen).streams
    write_line(dumps({str(each): streams[each].next_offset for each in sorted(streams)}))
    return 0


def _target(opened: Checkpoint, to_batch: int | None, batches: int | None) -> int:
    """Return the batch to go back to: `to_batch`, or the batch before the last `batches`."""
    if batches is None:
        assert to_batch is not None
        return to_batch
    if opened.last_committed is None:
        raise ConfigurationError(f"{opened.folder} has no committed batch to go back from")
    target = opened.last_committed - batches
    if opened.usable and target < opened.usable[0]:
        raise ConfigurationError(
            f"--batches {batches}: only {opened.last_committed - opened.usable[0]} can be undone;"
            " to read everything again start the query with a new checkpoint"
        )
    return target


def _effects(opened: Checkpoint, plan: Rewind) -> Iterator[str]:
    """Yield the lines about the effects of a rewind: repeated records, and sinks."""
    from sbp_spark.operations.checkpoint_files import find_sources, ways_back

    sources = find_sources(opened)
    yield f"query {opened.query_id} continues after batch {plan.target}:"
    for source in sources:
        where = f" of source {source.name}" if len(sources) > 1 else ""
        for each in ways_back(source, plan):
            yield (
                f"  stream {each.stream_id}{where} is read again from offset {each.start_offset}"
                f" (it was at {each.end_offset})"
            )
    undone = ", ".join(map(str, plan.undone))
    subject = f"Batch {undone} is" if len(plan.undone) == 1 else f"Batches {undone} are"
    yield (
        f"{subject} repeated under the same numbers. Each may get other records, as the"
        " limits and tails are then."
    )
    others = sources[0].count - len(sources)
    if others:
        yield f"The other sources of the query ({others}) are rewound to the same batch."
    yield "Records that were trimmed (trimOnCommit) are lost: failOnDataLoss applies to them."
    yield (
        "An sbp sink accepts a repeated batch if its rows are the same, and fails if they are not:"
        " to write them again, give it a writerGeneration that the query never had."
    )
    yield (
        "A sink that skips the batch numbers it has written loses these records: the file sinks,"
        " Delta, such code in foreachBatch. For it use a new checkpoint with the offsets that"
        " `sbp checkpoint to-starting-offsets` prints."
    )


def _write_batches(source: SbpSource) -> None:
    checkpoint = source.checkpoint
    write_line(f"query {checkpoint.query_id}, source {source.name} (one of {source.count})")
    committed = checkpoint.last_committed
    done = "none is committed" if committed is None else f"{committed} is the last committed one"
    kept = f"{checkpoint.logged[0]} to {checkpoint.logged[-1]}"
    write_line(f"batches {kept} are kept; {done}")
    if source.is_removed:
        write_line(f"the source was removed: batch {source.newest} is the last one that has it")
    if checkpoint.unfinished is not None:
        write_line(f"batch {checkpoint.unfinished} is not committed: it is repeated at a start")


def _row(each: StreamProgress) -> tuple[object, ...]:
    cells = (each.stream, each.next_offset, each.begun_offset, each.tail_offset, each.lag_records)
    return (each.stream_id, *("-" if cell is None else cell for cell in cells), each.remark)


_LEFT_OUT: Final = "no longer selected"


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a query has come in a stream; name, tail and lag if servers were asked.

    Records below `next_offset` are read and committed; None: a range server has been down since the
    query began, so it is not decided yet where reading starts. `begun_offset` is where the
    micro-batch ends that was begun last, None in a stream that it does not read.
    """

    stream_id: int
    next_offset: int | None
    begun_offset: int | None
    remark: str = ""
    stream: str | None = None
    tail_offset: int | None = None
    lag_records: int | None = None


def measure(source: SbpSource, client: Client | None = None) -> list[StreamProgress]:
    """Return how far a query is in each stream, by id; `client` compares that with the streams.

    Raises CheckpointError, and SbpError of the client.
    """
    from sbp_spark.reading.offsets import SourceOffset, find_gone

    last = source.last_committed
    committed = SourceOffset({}) if last is None else source.offset(last)
    done = {**committed.left_out, **committed.streams}
    newest = source.offset(source.newest)
    begun = newest.streams
    positions = dict(sorted({**newest.left_out, **begun, **done}.items()))
    pending = [
        StreamProgress(stream_id, None, None, _stalled(newest.stalled[stream_id]))
        for stream_id in sorted(newest.pending)
    ]
    found = [
        StreamProgress(
            stream_id,
            at.next_offset if stream_id in done else at.base_offset or 0,
            begun[stream_id].next_offset if stream_id in begun else None,
            _LEFT_OUT
            if stream_id in newest.left_out
            else _remark(at, newest.stalled.get(stream_id)),
        )
        for stream_id, at in positions.items()
    ]
    if client is None:
        return found + pending
    infos = {info.stream_id: info for info in client.find_streams([*positions])}
    bounds = {each.stream_id: each for each in client.stream_bounds([*infos])}
    gone = {at.stream_id for at in find_gone(positions.values(), infos)}
    return [
        replace(each, remark="created again since" if each.stream_id in infos else "deleted")
        if each.stream_id in gone
        else _compare(each, infos[each.stream_id], bounds[each.stream_id])
        for each in found
    ] + pending


def maybe_put_back(source: SbpSource, client: Client) -> bool | None:
    """Whether the placement driver's metadata lack a commit that the query has seen.

    Then the metadata were restored from an older copy, or belong to another cluster. None: the
    offset or the placement driver has no commits. Raises CheckpointError, and SbpError of the
    client.
    """
    commit = source.offset(source.newest).commit
    is_there = None if commit is None else client.has_commit(commit)
    return None if is_there is None else not is_there


def _compare(each: StreamProgress, info: StreamInfo, held: StreamBounds) -> StreamProgress:
    assert each.next_offset is not None, "its start is decided"
    first = max(each.next_offset, held.start_offset)
    remark = each.remark
    if first > each.next_offset:
        remark = f"{counted(first - each.next_offset, 'record')} trimmed before the query read them"
    if held.next_offset < each.next_offset:
        remark = "the stream went backwards"
    return replace(
        each,
        remark=remark,
        stream=info.label,
        tail_offset=held.next_offset,
        lag_records=max(held.next_offset - first, 0),
    )


def _stalled(since_ms: int) -> str:
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"stalled: a range server was down, since {since}"


def _remark(at: StreamPosition, stalled_since_ms: int | None) -> str:
    """Return what reading waits for, or where it is to end, if it is to."""
    if stalled_since_ms is not None:
        return _stalled(stalled_since_ms)
    return "" if at.end_offset is None else f"read up to {at.end_offset} only"
