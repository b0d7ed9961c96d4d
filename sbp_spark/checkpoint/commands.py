"""`sbp checkpoint`: what a query has read, and taking it back."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import asdict
from typing import Final

from sbp_core.cli.connect import connect
from sbp_core.cli.output import write_json, write_line, write_table
from sbp_core.errors import ConfigurationError
from sbp_spark.checkpoint.files import (
    Checkpoint,
    SbpSource,
    find_source,
    find_sources,
    open_checkpoint,
)
from sbp_spark.checkpoint.progress import StreamProgress, maybe_put_back, measure
from sbp_spark.checkpoint.rewinding import carry_out, plan_rewind, ways_back

_HEADING: Final = ("ID", "STREAM", "READ TO", "BEGUN TO", "TAIL", "LAG", "")


def show(options: Namespace) -> int:
    """Print how far the query of a checkpoint has come."""
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
            "the metadata lack a commit that the query has seen: the placement driver's data"
            " directory was put back to an older copy, or this is another cluster"
        )
    return 0


def to_starting_offsets(options: Namespace) -> int:
    """Print where a new query goes on, as the option startingOffsets takes it."""
    checkpoint = open_checkpoint(options.folder)
    source = find_source(checkpoint, options.source)
    batch = checkpoint.maybe_last_committed if options.batch is None else options.batch
    if batch is None:
        raise ConfigurationError(
            f"{checkpoint.folder} has no committed batch: start the new query as this one was"
        )
    checkpoint.check_committed(batch)
    streams = source.decided_offset(batch).streams
    write_line(json.dumps({str(each): streams[each].next_offset for each in sorted(streams)}))
    return 0


def rewind(options: Namespace) -> int:
    """Take a query back, so that it reads again what came after a micro-batch."""
    checkpoint = open_checkpoint(options.folder)
    sources = find_sources(checkpoint)
    plan = plan_rewind(checkpoint, _target(checkpoint, options))
    ways = [ways_back(source, plan) for source in sources]
    write_line(f"query {checkpoint.query_id} goes on behind batch {plan.target}:")
    for source, streams in zip(sources, ways, strict=True):
        where = f" of source {source.name}" if len(sources) > 1 else ""
        for each in streams:
            write_line(
                f"  stream {each.stream_id}{where} is read again from {each.start_offset},"
                f" it was at {each.end_offset}"
            )
    undone = ", ".join(map(str, plan.undone))
    write_line(
        f"Batches {undone} are run anew: the same numbers, but as many records in each as limits"
        " and tails then say."
    )
    others = sources[0].count - len(sources)
    if others:
        write_line(f"The other sources of the query, {others}, go back as far.")
    write_line(
        "What the query has let servers trim (trimOnCommit) is gone, and is not read again:"
        " failOnDataLoss decides what is done about that."
    )
    write_line(
        "Sinks get those records again. One that remembers the numbers of batches passes over"
        " those it has had, and loses what is in them: the file sinks, Delta, foreachBatch code"
        " that skips known numbers. For such a query take a new checkpoint and `sbp checkpoint"
        " to-starting-offsets`."
    )
    if not options.yes:
        raise ConfigurationError(
            "nothing was changed: Spark locks no checkpoint, so nobody can tell whether a query"
            " runs on this one; stop it, on whatever machine it is, and say --yes"
        )
    write_line(f"done; what was undone is kept in {carry_out(plan)}")
    return 0


def _target(checkpoint: Checkpoint, options: Namespace) -> int:
    if options.to_batch is not None:
        return int(options.to_batch)
    last = checkpoint.maybe_last_committed
    if last is None:
        raise ConfigurationError(f"{checkpoint.folder} has no committed batch to go back from")
    return last - int(options.batches)


def _write_batches(source: SbpSource) -> None:
    checkpoint = source.checkpoint
    write_line(f"query {checkpoint.query_id}, source {source.name} (one of {source.count})")
    committed = checkpoint.maybe_last_committed
    done = "none is committed" if committed is None else f"{committed} is the last committed one"
    kept = f"{checkpoint.logged[0]} to {checkpoint.logged[-1]}"
    write_line(f"batches {kept} are kept; {done}")
    if checkpoint.maybe_unfinished is not None:
        write_line(f"batch {checkpoint.maybe_unfinished} was begun, and is run again at the start")


def _row(each: StreamProgress) -> tuple[object, ...]:
    cells = (each.stream, each.next_offset, each.begun_offset, each.tail_offset, each.lag_records)
    return (each.stream_id, *("-" if cell is None else cell for cell in cells), each.remark)
