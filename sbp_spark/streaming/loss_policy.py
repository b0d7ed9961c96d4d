"""The option failOnDataLoss in a streaming query: fail, continue, or continue and report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from sbp_core.client import Client, StoreCommit, StreamInfo
from sbp_core.wording import listed
from sbp_spark.options.source import OnDataLoss
from sbp_spark.reading.losses import DataLossError, Loss, log_losses
from sbp_spark.reading.offsets import (
    NEW_CHECKPOINT,
    Interval,
    SourceOffset,
    StreamChangedError,
    StreamPosition,
    find_gone,
)
from sbp_spark.reporting import LOG
from sbp_spark.streaming.stream_watch import Snapshot


class LossPolicy:
    """Decides about losses in one run of a query.

    Losses are logged where they are found. Losses to be reported go into the next offset.
    """

    def __init__(self, on_data_loss: OnDataLoss, client: Client) -> None:
        self._on_data_loss = on_data_loss
        self._client = client
        self._commit: StoreCommit | None = None
        self._names: dict[int, str] = {}
        self._noted: list[Loss] = []
        self._logged_backward: set[int] = set()

    @property
    def _is_fatal(self) -> bool:
        return self._on_data_loss is OnDataLoss.FAIL

    def settle_put_back(
        self, offset: SourceOffset, reported: StoreCommit | None
    ) -> StoreCommit | None:
        """Return the last commit of the placement driver's metadata, which the next offset keeps.

        `reported` is the last commit that an answer of the placement driver had; None if it counts
        no commits. Raises StreamChangedError, if that is to fail, when the metadata lack the commit
        of `offset` or a later commit that this run has seen. The placement driver is asked for the
        known commit only if it has restarted since, or if its commits go back.
        """
        known = self._commit or offset.commit
        is_later = (
            reported is not None
            and known is not None
            and reported.life == known.life
            and reported.number >= known.number
        )
        was_asked = reported is None and self._commit is not None
        if known is None or is_later or was_asked:
            self._commit = reported or known
            return reported
        if self._client.has_commit(known) is False:
            message = (
                f"the placement driver's metadata never had commit {known.number} of life"
                f" {known.life}, which the query has seen: its data directory was restored from an"
                " older copy, or another cluster answers. Records that were appended since at"
                " offsets which the query has already read"
            )
            if self._is_fatal:
                raise StreamChangedError(
                    f"{message} would be skipped. Restore the newest copy, or {NEW_CHECKPOINT}; to"
                    " continue from the same offsets, set failOnDataLoss to false or report"
                )
            LOG.warning("data loss: %s are skipped; it is not known which records", message)
        self._commit = self._client.last_commit or known
        return self._client.last_commit

    def settle_gone(
        self, begin: SourceOffset, snapshot: Snapshot
    ) -> tuple[SourceOffset, list[Loss]]:
        """Return `begin` with the streams that are read now, and the losses.

        Deleted streams are dropped. Streams that exist and are not selected any more are kept as
        left out, and are read on when they are selected again. Raises StreamChangedError if a
        deleted, unselected or backward stream is to fail.
        """
        self._learn_names(snapshot.streams)
        missing = find_gone(begin.streams.values(), snapshot.streams)
        gone = self._without_existing(missing)
        left = {at.stream_id: at for at in missing if at not in gone}
        if missing and self._is_fatal:
            new = snapshot.streams.keys() - begin.streams.keys()
            raise _missing_error(gone, left.values(), new, self._names)
        missing_ids = {at.stream_id for at in missing}
        there = {each: at for each, at in begin.streams.items() if each not in missing_ids}
        self._settle_backward(there.values(), snapshot)
        losses = [Loss(at.stream_id, at.next_offset, None) for at in gone]
        log_losses(losses, self._names)
        self._log_left(left.values())
        back = {
            each: at
            for each, at in begin.left_out.items()
            if each in snapshot.bounds and not find_gone([at], snapshot.streams)
        }
        if not missing and not back:
            return begin, losses
        stalled = {each: at for each, at in begin.stalled.items() if each not in missing_ids}
        left_out = {
            each: replace(at, base_offset=None)
            for each, at in {**begin.left_out, **left}.items()
            if each not in back
        }
        there |= back
        return replace(begin, streams=there, stalled=stalled, left_out=left_out), losses

    def settle_trimmed(self, losses: Sequence[Loss]) -> None:
        """Raise DataLossError if losses are to fail. Otherwise planning logs unreported losses."""
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
        """Return the intervals up to `finish` whose streams exist, selected or not.

        Raises StreamChangedError if missing streams are to fail.
        """
        self._learn_names(streams)
        positions = [finish.streams[each.stream_id] for each in wanted]
        missing = self._without_existing(find_gone(positions, streams))
        gone = {at.stream_id: at for at in missing}
        if gone and self._is_fatal:
            new = streams.keys() - finish.streams.keys()
            raise _missing_error(gone.values(), [], new, self._names)
        losses = [Loss(*each) for each in wanted if each.stream_id in gone]
        log_losses(losses, self._names)
        self.note(losses)
        return [each for each in wanted if each.stream_id not in gone]

    def note(self, losses: Iterable[Loss]) -> None:
        """Remember losses that were found too late for the offset that they belong to."""
        self._noted += losses

    def to_report(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return the losses for the next offset: these losses and the noted losses."""
        noted, self._noted = self._noted, []
        return [*noted, *losses] if self._on_data_loss is OnDataLoss.REPORT else []

    def _settle_backward(self, known: Iterable[StreamPosition], snapshot: Snapshot) -> None:
        for at in known:
            tail = snapshot.tails[at.stream_id]
            if tail >= at.next_offset:
                continue
            message = (
                f"stream {at.stream_id} ({self._names[at.stream_id]}) went backwards: it was read"
                f" up to offset {at.next_offset}, and now ends at {tail}; records that are"
                f" appended at the offsets [{tail}, {at.next_offset})"
            )
            if self._is_fatal:
                raise StreamChangedError(
                    f"{message} would be skipped; run `sbp log check` on its range servers. To wait"
                    " until the stream reaches that offset, set failOnDataLoss to false or report"
                )
            if at.stream_id not in self._logged_backward:
                LOG.warning("data loss: %s are skipped", message)
                self._logged_backward.add(at.stream_id)

    def _without_existing(self, missing: Sequence[StreamPosition]) -> list[StreamPosition]:
        """Return the positions whose streams do not exist, whatever is selected."""
        if not missing:
            return []
        infos = self._client.find_streams([at.stream_id for at in missing])
        existing = {info.stream_id: info for info in infos}
        self._learn_names(existing)
        return find_gone(missing, existing)

    def _log_left(self, left: Iterable[StreamPosition]) -> None:
        for at in left:
            LOG.warning(
                "stream %d (%s) is no longer selected and not read: the checkpoint keeps offset %d,"
                " from which it is read on if it is selected again",
                at.stream_id,
                self._names[at.stream_id],
                at.next_offset,
            )

    def _learn_names(self, streams: Mapping[int, StreamInfo]) -> None:
        self._names |= {each: info.label for each, info in streams.items()}


def _missing_error(
    gone: Collection[StreamPosition],
    left: Collection[StreamPosition],
    new: Iterable[int],
    names: Mapping[int, str],
) -> StreamChangedError:
    """Return the error of streams that are no longer read, and up to where they were."""
    faults = []
    if gone:
        faults.append(
            f"{_described(gone, names)} (new to it: {listed(sorted(new)) or 'none'}): it was"
            " deleted, or created again under the same name; set failOnDataLoss to false or report"
            f" to continue without its unread records, or {NEW_CHECKPOINT}"
        )
    if left:
        faults.append(
            f"{_described(left, names)}: it exists, but is not selected: it was left out, or"
            " renamed; select it by its present name, or set failOnDataLoss to false or report to"
            " continue without it: its position is kept until it is selected again"
        )
    return StreamChangedError(". ".join(faults))


def _described(positions: Iterable[StreamPosition], names: Mapping[int, str]) -> str:
    read = [
        f"{at.stream_id} ({names.get(at.stream_id) or 'unnamed'}) up to offset {at.next_offset}"
        for at in positions
    ]
    return f"the checkpoint has read stream {listed(read)}, which the query no longer reads"
