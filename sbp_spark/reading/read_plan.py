"""From intervals of streams to the input partitions that read them, asking where they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sbp_core.client import Client, StreamInfo
from sbp_spark.options import OnDataLoss, SourceOptions
from sbp_spark.reading.data_loss import DOUBT_WAITS_S, DataLossError, Loss, log_losses
from sbp_spark.reading.fetch_task import SpanPartition
from sbp_spark.reading.layout import Form
from sbp_spark.reading.offsets import Interval
from sbp_spark.reading.planning import Cover, cover, plan_partitions
from sbp_spark.reading.positions import display_name
from sbp_spark.reading.record_sizes import RecordSizes

SPANS_PER_PARTITION_MAX: Final = 1_000


class Planned(NamedTuple):
    """Partitions, none for nothing to read, and what they leave out because it is lost."""

    partitions: list[SpanPartition]
    losses: tuple[Loss, ...]


def plan_read(
    client: Client,
    options: SourceOptions,
    intervals: Iterable[Interval],
    streams: Mapping[int, StreamInfo],
    form: Form,
    *,
    as_of: int | None = None,
) -> Planned:
    """Return the partitions that read the intervals, in the form that the query has chosen.

    `as_of` is the revision of the metadata, if the caller has just been told it.
    The same intervals are cut in the same way whenever they are planned, as long as the ranges of
    the streams are the same. Raises DataLossError when some offsets are stored nowhere any more,
    unless the options say to go on.
    """
    wanted = [each for each in intervals if each.start_offset < each.end_offset]
    if not wanted:
        return Planned([], ())
    names = {each.stream_id: display_name(streams[each.stream_id]) for each in wanted}
    spans, losses = _look_up(client, wanted, names, as_of)
    is_loss_fatal = options.on_data_loss is OnDataLoss.FAIL
    if losses and is_loss_fatal:
        raise DataLossError(losses, names)
    log_losses(losses, names)
    limits = options.partitions
    sizes = None
    if limits.bytes_max is not None:
        starts = {each.stream_id: each.start_offset for each in wanted}
        ends = {each.stream_id: each.end_offset for each in wanted}
        sizes = RecordSizes(client).estimate(starts, ends)
    planned = plan_partitions(
        spans,
        records_per_partition_max=limits.records_max,
        bytes_per_partition_max=limits.bytes_max,
        record_bytes=sizes,
        partitions_min=limits.count_min,
        spans_per_partition_max=SPANS_PER_PARTITION_MAX,
    )
    partitions = [
        SpanPartition(
            options.servers,
            each,
            form,
            is_loss_fatal=is_loss_fatal,
            buffer_bytes=options.partitions.buffer_bytes,
        )
        for each in planned
    ]
    return Planned(partitions, losses)


def _look_up(
    client: Client, wanted: Sequence[Interval], names: Mapping[int, str], as_of: int | None
) -> Cover:
    """Return where the intervals are; a loss is not believed before it was shown for a while."""
    stream_ids = [each.stream_id for each in wanted]
    for wait_s in (*DOUBT_WAITS_S, 0):
        ranges = client.list_ranges(stream_ids, as_of=as_of)
        found = cover(
            wanted, (piece for pieces in ranges.values() for piece in pieces), names=names
        )
        if not found.losses:
            break
        as_of = None
        time.sleep(wait_s)
    return found
