"""What a streaming query does about records that are gone: fail, go on, or go on and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sbp_core.client import StreamInfo
from sbp_spark.log import LOG
from sbp_spark.options import OnDataLoss
from sbp_spark.reading.data_loss import DataLossError, Loss, log_losses
from sbp_spark.reading.offsets import Interval, SourceOffset, StreamChangedError, find_gone
from sbp_spark.reading.positions import display_name
from sbp_spark.reading.stream_position import NEW_CHECKPOINT, StreamPosition
from sbp_spark.streaming.snapshot import Snapshot
from sbp_spark.wording import listed


class LossPolicy:
    """The option failOnDataLoss at work, in one run of a query.

    Losses are logged where they are found. What is to be reported goes into the next offset.
    """

    def __init__(self, on_data_loss: OnDataLoss) -> None:
        self._on_data_loss = on_data_loss
        self._names: dict[int, str] = {}
        self._noted: list[Loss] = []
        self._told_backward: set[int] = set()

    @property
    def _is_fatal(self) -> bool:
        return self._on_data_loss is OnDataLoss.FAIL

    def settle_gone(
        self, begin: SourceOffset, snapshot: Snapshot
    ) -> tuple[SourceOffset, list[Loss]]:
        """Return `begin` without the streams that are no more, and what is lost by that.

        Raises StreamChangedError if that is to fail, also for a stream that went backwards.
        """
        self._learn_names(snapshot.streams)
        gone = find_gone(begin.streams.values(), _created(snapshot.streams))
        if gone and self._is_fatal:
            raise _gone_error(gone, snapshot.streams.keys() - begin.streams.keys(), self._names)
        gone_ids = {at.stream_id for at in gone}
        there = {each: at for each, at in begin.streams.items() if each not in gone_ids}
        self._settle_backward(there.values(), snapshot)
        losses = [Loss(at.stream_id, at.next_offset, None) for at in gone]
        log_losses(losses, self._names)
        stalled = {each: at for each, at in begin.stalled.items() if each not in gone_ids}
        return (SourceOffset(there, stalled=stalled) if gone else begin), losses

    def settle_trimmed(self, losses: Sequence[Loss]) -> None:
        """Raise DataLossError if losses are to fail; planning logs those that go into no offset."""
        if losses and self._is_fatal:
            raise DataLossError(tuple(losses), self._names)
        if self._on_data_loss is OnDataLoss.REPORT:
            log_losses(losses, self._names)

    def settle_unreadable(
        self,
        finish: SourceOffset,
        wanted: Sequence[Interval],
        streams: Mapping[int, StreamInfo],
    ) -> list[Interval]:
        """Return those intervals up to `finish` whose streams are there.

        Raises StreamChangedError if others are to fail.
        """
        self._learn_names(streams)
        positions = [finish.streams[each.stream_id] for each in wanted]
        gone = {at.stream_id: at for at in find_gone(positions, _created(streams))}
        if gone and self._is_fatal:
            raise _gone_error(gone.values(), streams.keys() - finish.streams.keys(), self._names)
        losses = [Loss(*each) for each in wanted if each.stream_id in gone]
        log_losses(losses, self._names)
        self.note(losses)
        return [each for each in wanted if each.stream_id not in gone]

    def note(self, losses: Iterable[Loss]) -> None:
        """Remember losses that were found too late for the offset that they belong to."""
        self._noted += losses

    def to_report(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return what goes into the next offset: these losses, and those that were noted."""
        noted, self._noted = self._noted, []
        return [*noted, *losses] if self._on_data_loss is OnDataLoss.REPORT else []

    def _settle_backward(self, known: Iterable[StreamPosition], snapshot: Snapshot) -> None:
        for at in known:
            tail = snapshot.tails[at.stream_id]
            if tail >= at.next_offset:
                continue
            said = (
                f"stream {at.stream_id} ({self._names[at.stream_id]}) went backwards: it was read"
                f" up to offset {at.next_offset}, and now ends at {tail}; records that get the"
                f" offsets [{tail}, {at.next_offset}) from now on"
            )
            if self._is_fatal:
                raise StreamChangedError(
                    f"{said} would not be read; find out what the range servers have lost. To wait"
                    " until the stream is there again, set failOnDataLoss to false, or report"
                )
            if at.stream_id not in self._told_backward:
                LOG.warning("data loss: %s are not read", said)
                self._told_backward.add(at.stream_id)

    def _learn_names(self, streams: Mapping[int, StreamInfo]) -> None:
        self._names |= {each: display_name(info) for each, info in streams.items()}


def _created(streams: Mapping[int, StreamInfo]) -> dict[int, int]:
    return {stream_id: info.created_at_ms for stream_id, info in streams.items()}


def _gone_error(
    gone: Iterable[StreamPosition], new: Iterable[int], names: Mapping[int, str]
) -> StreamChangedError:
    """Return the error that says up to where streams were read that are no more."""
    read = [
        f"{at.stream_id} ({names.get(at.stream_id) or 'unnamed'}) up to offset {at.next_offset}"
        for at in gone
    ]
    return StreamChangedError(
        f"the checkpoint has read stream {listed(read)}, which the query no longer reads"
        f" (new to it: {listed(sorted(new)) or 'none'}): deleted, created anew under the same"
        " name, or left out of the option streams; name it again, or set failOnDataLoss to false,"
        f" or report, to go on without what it still held, or {NEW_CHECKPOINT}"
    )
