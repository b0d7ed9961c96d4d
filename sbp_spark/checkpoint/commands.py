"""`sbp checkpoint`: how far a query has read its streams, and rewinding it."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from sbp_core.cli.connect import connect
from sbp_core.cli.output import write_json, write_line, write_table
from sbp_core.cli.parsing import Actions, add_tls_client_options, parse_number, parse_path
from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.wording import counted
from sbp_spark.checkpoint.files import (
    Checkpoint,
    SbpSource,
    carry_out,
    find_source,
    find_sources,
    open_checkpoint,
    plan_rewind,
    ways_back,
)
from sbp_spark.reading.offsets import SourceOffset, StreamPosition, find_gone

_HEADING: Final = ("ID", "STREAM", "READ TO", "BEGUN TO", "TAIL", "LAG", "")


def add_checkpoint(parser: ArgumentParser) -> None:
    """Declare `sbp checkpoint` and its actions."""
    actions = Actions(parser)
    showing = actions.add(
        "show",
        show,
        help="show how far a query has read",
        description="Show up to where a query has read each stream (committed), and the end of the"
        " batch that was begun last. With --endpoint also how far it is behind.",
    )
    showing.add_argument(
        "--endpoint", metavar="HOST:PORT[,...]", help="placement drivers to ask for tails"
    )
    add_tls_client_options(showing)
    showing.add_argument("--json", action="store_true", help="print JSON")
    rewinding = actions.add(
        "rewind",
        rewind,
        help="let a stopped query read the records after a batch again",
        description="Move the later batches of a checkpoint aside, so that the query"
        " continues from there. First prints the batches that are repeated and the effect on sinks;"
        " changes nothing without --yes. The moved files are kept in a folder of the"
        " checkpoint.",
    )
    back = rewinding.add_mutually_exclusive_group(required=True)
    back.add_argument("--to-batch", type=parse_number, metavar="N", help="the last one to keep")
    back.add_argument(
        "--batches", type=parse_number, metavar="K", help="undo the last K committed ones"
    )
    rewinding.add_argument("--yes", action="store_true", help="confirm that no query runs on it")
    starts = actions.add(
        "to-starting-offsets",
        to_starting_offsets,
        help="print where a query with a new checkpoint continues",
        description="Print, for the option startingOffsets, the position after the last committed"
        " batch. Give it to a query with a new checkpoint.",
    )
    starts.add_argument("--batch", type=parse_number, metavar="N", help="another committed batch")
    for action in (showing, rewinding, starts):
        action.add_argument(
            "folder",
            type=parse_path,
            metavar="DIR",
            help="the query's checkpointLocation, a local folder",
        )
    for action in (showing, starts):
        action.add_argument(
            "--source",
            metavar="NAME",
            help="source of the query, if several read streams: the name given with"
            " readStream.name(), or the index of an unnamed source, from 0",
        )


def show(options: Namespace) -> int:
    """Print how far the query of a checkpoint has read."""
    checkpoint = open_checkpoint(options.folder)
    source = find_source(checkpoint, options.source)
    with connect(options) if options.endpoint else nullcontext() as client:
        found = measure(source, client)
        put_back = None if client is None else maybe_put_back(source, client)
    lost = [(batch, loss) for batch in checkpoint.logged for loss in source.offset(batch).lost]
    if options.json:
        write_json(
            {
                "query_id": checkpoint.query_id,
                "logged": checkpoint.logged,
                "committed": checkpoint.committed,
                "source": int(source.name) if source.name.isdecimal() else source.name,
                "streams": [asdict(each) for each in found],
                "put_back": put_back,
                "lost": [{"batch": batch, **asdict(loss)} for batch, loss in lost],
            }
        )
        return 0
    _write_batches(source)
    write_table(_HEADING, [_row(each) for each in found])
    for batch, loss in lost:
        write_line(f"lost in batch {batch}: {loss.describe({})}")
    if put_back:
        write_line(
            "the placement driver's metadata lack a commit that the query has seen: its data"
            " directory was restored from an older copy, or this is another cluster"
        )
    return 0


def to_starting_offsets(options: Namespace) -> int:
    """Print where a new query continues, as a value of the option startingOffsets."""
    checkpoint = open_checkpoint(options.folder)
    source = find_source(checkpoint, options.source)
    batch = checkpoint.last_committed if options.batch is None else options.batch
    if batch is None:
        raise ConfigurationError(
            f"{checkpoint.folder} has no committed batch: start the new query with the"
            " starting options of this one"
        )
    checkpoint.check_committed(batch)
    streams = source.decided_offset(batch).streams
    write_line(json.dumps({str(each): streams[each].next_offset for each in sorted(streams)}))
    return 0


def rewind(options: Namespace) -> int:
    """Rewind a query to the end of a micro-batch."""
    checkpoint = open_checkpoint(options.folder)
    sources = find_sources(checkpoint)
    plan = plan_rewind(checkpoint, _target(checkpoint, options))
    ways = [ways_back(source, plan) for source in sources]
    write_line(f"query {checkpoint.query_id} continues after batch {plan.target}:")
    for source, streams in zip(sources, ways, strict=True):
        where = f" of source {source.name}" if len(sources) > 1 else ""
        for each in streams:
            write_line(
                f"  stream {each.stream_id}{where} is read again from offset {each.start_offset}"
                f" (it was at {each.end_offset})"
            )
    undone = ", ".join(map(str, plan.undone))
    subject = f"Batch {undone} is" if len(plan.undone) == 1 else f"Batches {undone} are"
    write_line(
        f"{subject} repeated under the same numbers. Each may get other records, as the"
        " limits and tails are then."
    )
    others = sources[0].count - len(sources)
    if others:
        write_line(f"The other sources of the query ({others}) are rewound to the same batch.")
    write_line("Records that were trimmed (trimOnCommit) are lost: failOnDataLoss applies to them.")
    write_line(
        "A sink that skips the batch numbers it has written loses these records: the file sinks,"
        " Delta, such code in foreachBatch. For it use a new checkpoint with the offsets that"
        " `sbp checkpoint to-starting-offsets` prints."
    )
    if not options.yes:
        raise ConfigurationError(
            "nothing was changed: Spark does not lock checkpoints, so a running query cannot be"
            " detected; make sure that none runs on this one, on any machine, and add --yes"
        )
    write_line(f"done; the files of the undone batches are kept in {carry_out(plan)}")
    return 0


def _target(checkpoint: Checkpoint, options: Namespace) -> int:
    if options.to_batch is not None:
        return int(options.to_batch)
    last = checkpoint.last_committed
    if last is None:
        raise ConfigurationError(f"{checkpoint.folder} has no committed batch to go back from")
    return last - int(options.batches)


def _write_batches(source: SbpSource) -> None:
    checkpoint = source.checkpoint
    write_line(f"query {checkpoint.query_id}, source {source.name} (one of {source.count})")
    committed = checkpoint.last_committed
    done = "none is committed" if committed is None else f"{committed} is the last committed one"
    kept = f"{checkpoint.logged[0]} to {checkpoint.logged[-1]}"
    write_line(f"batches {kept} are kept; {done}")
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
    checkpoint = source.checkpoint
    last = checkpoint.last_committed
    committed = SourceOffset({}) if last is None else source.offset(last)
    done = {**committed.left_out, **committed.streams}
    newest = source.offset(checkpoint.logged[-1])
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

    Then they were put back to an older copy, or are those of another cluster. None: the offset or
    the placement driver has no commits. Raises CheckpointError, and SbpError of the client.
    """
    commit = source.offset(source.checkpoint.logged[-1]).commit
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
    if at.target_offset is not None:
        return f"an available-now run continues to {at.target_offset}"
    return "" if at.end_offset is None else f"read up to {at.end_offset} only"
