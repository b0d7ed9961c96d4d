"""END_TXN: publish the staged batches of transactions in one step, or drop them (SPEC "END_TXN").

The log publishes by one entry, which gives the staged batches the next offsets of their range. The
log remembers the last ends of every stream, so that a repeat gets the same answer.

Only the placement driver knows which transactions will never be published. `StagedSweep` asks it
about old stagings, and drops the dead ones. If the id names a producer's batch, it first asks only
whether that batch was decided. After the timeout it asks the placement driver to abort it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks
from sbp_core.errors import SbpError, TxnEndedError, TxnIncompleteError, invalid
from sbp_core.failpoints import failpoint
from sbp_core.log.entry import Entry
from sbp_core.log.states.staged_states import StagedStates, Staging, commit_entry, drop_entry
from sbp_core.peers.driver_calls import Ended
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.appending.staging import NO_OFFSET, Stagings, check_txn_ids
from sbp_core.rangeserver.hosted_ranges import RangeInput, check_latest, unsettled
from sbp_core.rangeserver.hosting import DriverPort, RangeHost
from sbp_core.server.answers import in_frames
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.wire.headers import EndTxnInfo, EndTxnRequest, EndTxnResponse, EndTxnResult, TxnPart
from sbp_core.wire.status import SUCCESS, status_for
from sbp_core.wire.txn_id import maybe_batch_of
from sbp_core.wording import counted, listed

_LOG: Final = logging.getLogger(__name__)

_ONLY_IF_DECIDED: Final = -1
"""As the record count of a part: the placement driver must not abort it, only say if it is dead."""


class EndTxnHandler:
    """Serves END_TXN. Each item of a frame succeeds or fails by itself."""

    def __init__(self, host: RangeHost, stagings: Stagings, committer: GroupCommitter) -> None:
        self._host = host
        self._stagings = stagings
        self._committer = committer
        self._at_work: set[asyncio.Task[Ended]] = set()

    async def __call__(self, call: ServerCall) -> Answer:
        """Answer one frame. An end that has begun is finished, even if the call is cancelled."""
        infos = call.decode(EndTxnRequest).end_requests
        await self._host.learn((info.stream_id, info.range_index) for info in infos if info.commit)
        return in_frames(
            await asyncio.gather(*map(self._answer, infos)),
            lambda part: EndTxnResponse(end_responses=part, status=SUCCESS),
        )

    async def drop(self, stream_id: int, range_index: int, txn_ids: Sequence[str]) -> int:
        """Drop the stagings of ids in a range, in all ranges of the stream if that is -1.

        Returns the number of dropped records. Published batches stay. Raises LogWriteError.
        """
        info = EndTxnInfo(stream_id, txn_ids=tuple(txn_ids), range_index=range_index)
        return (await self._finish(info)).record_count

    async def stop(self) -> None:
        """Wait for ends that have begun, until the timeout of a drain."""
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=limits.DRAIN_TIMEOUT_MS / 1000)

    async def _answer(self, info: EndTxnInfo) -> EndTxnResult:
        try:
            ended = await self._finish(info)
        except SbpError as error:
            return EndTxnResult(info.stream_id, info.request_index, status=status_for(error))
        return EndTxnResult(
            info.stream_id, info.request_index, ended.base_offset, ended.record_count, SUCCESS
        )

    async def _finish(self, info: EndTxnInfo) -> Ended:
        task = asyncio.create_task(self._end(info))
        self._at_work.add(task)
        task.add_done_callback(self._on_finished)
        return await asyncio.shield(task)

    def _on_finished(self, task: asyncio.Task[Ended]) -> None:
        self._at_work.discard(task)
        task.exception()  # retrieved here: the call may have been cancelled

    async def _end(self, info: EndTxnInfo) -> Ended:
        check_txn_ids(info.txn_ids)
        with self._stagings.closing(info.stream_id, info.txn_ids):
            await self._stagings.settle(info.stream_id, self._ranges_of(info), info.txn_ids)
            # No await from here to the submission: the entry follows from the states checked here.
            return await (self._publish(info) if info.commit else self._drop(info))

    def _ranges_of(self, info: EndTxnInfo) -> list[int]:
        """Return the ranges in which batches may be staged."""
        if info.range_index >= 0:
            return [info.range_index]
        if not self._host.table.has_stream(info.stream_id):
            return []
        return [hosted.range_index for hosted in self._host.table.ranges_of(info.stream_id)]

    async def _publish(self, info: EndTxnInfo) -> Ended:
        named = self._host.table.maybe_range((info.stream_id, info.range_index))
        if named is not None and named.is_incomplete_copy:
            raise named.unknown("whether these transactions ended in it")
        done = self._maybe_done(info)
        if done is not None:
            index = info.range_index if info.range_index >= 0 else None
            if not self._host.may_acknowledge(
                info.stream_id, range_index=index, offset=done.base_offset
            ):
                raise unsettled(info.stream_id, info.range_index)
            return done
        if info.range_index < 0:
            raise invalid("END_TXN with commit must name the range to publish in: set range_index")
        hosted = self._host.table.range_at(info.stream_id, -1)
        if named is None and hosted.is_replicated:  # raises: another server may have the range
            self._host.table.range_at(info.stream_id, info.range_index)
        check_latest(hosted, info.range_index)
        hosted.receive(RangeInput.APPEND)
        stagings = self._staged(info)
        record_count = sum(staging.record_count for staging in stagings)
        if not record_count:
            return Ended(NO_OFFSET, 0)
        entry = commit_entry(*hosted.key, hosted.assigned_offset, stagings)
        base_offset = hosted.assign(record_count)
        await self._write(info.txn_ids, entry)
        return Ended(base_offset, record_count)

    def _maybe_done(self, info: EndTxnInfo) -> Ended | None:
        """Return the earlier end, if the same transactions were published before.

        Raises TxnEndedError if one was dropped, InvalidRequestError if one was published with
        others.
        """
        ends = self._stagings.known.ends(info.stream_id)
        for end in reversed(ends):
            if end.is_commit and end.txn_ids == info.txn_ids:
                return Ended(end.base_offset, end.record_count)
        for end in reversed(ends):
            for txn_id in set(info.txn_ids) & set(end.txn_ids):
                if end.is_commit:
                    raise invalid(
                        f"transaction {txn_id} was published in stream {info.stream_id} together"
                        f" with others, {len(end.txn_ids)} in all; the first is {end.txn_ids[0]}"
                    )
                raise TxnEndedError.of(
                    f"the batches of transaction {txn_id} in stream {info.stream_id} were dropped"
                )
        return None

    def _staged(self, info: EndTxnInfo) -> list[Staging]:
        """Return the staging of each id. Raises TxnIncompleteError if batches are missing."""
        key = (info.stream_id, info.range_index)
        found = [self._stagings.known.maybe_staging(*key, each) for each in info.txn_ids]
        record_count = sum(staging.record_count for staging in found if staging is not None)
        is_complete = record_count == info.record_count or (info.record_count < 0 < record_count)
        if not is_complete:
            expected = "one or more are" if info.record_count < 0 else f"{info.record_count} were"
            raise TxnIncompleteError.of(
                f"{counted(len(found), 'transaction')} with {counted(record_count, 'record')}"
                f" staged in range {info.range_index} of stream {info.stream_id}, and {expected} to"
                " be published; nothing was"
            )
        return [
            staging or Staging(*key, txn_id, staged_at_ms=0)
            for staging, txn_id in zip(found, info.txn_ids, strict=True)
        ]

    async def _drop(self, info: EndTxnInfo) -> Ended:
        stream_id, wanted = info.stream_id, set(info.txn_ids)
        staged = [
            staging
            for staging in self._stagings.known.stagings_of(stream_id)
            if staging.txn_id in wanted
            and info.range_index in {-1, staging.range_index}
            and self._host.may_drop(stream_id, staging.range_index)
        ]
        by_range: dict[int, list[str]] = {}
        for staging in staged:
            by_range.setdefault(staging.range_index, []).append(staging.txn_id)
        ends = [drop_entry(stream_id, *each) for each in by_range.items()]
        if ends:
            await self._write(list(dict.fromkeys(staging.txn_id for staging in staged)), *ends)
        return Ended(NO_OFFSET, sum(staging.record_count for staging in staged))

    async def _write(self, txn_ids: Sequence[str], *ends: Entry) -> None:
        failpoint("txn.before_end")
        submitted = self._committer.submit(ends)
        self._stagings.follow_end(ends[0].stream_id, txn_ids, submitted)
        written = await submitted
        for entry in ends:
            written.check((entry.stream_id, entry.range_index))
        failpoint("txn.after_end")


Drop = Callable[[int, int, Sequence[str]], Awaitable[int]]
"""Drops the stagings of ids in a range of a stream; returns the number of records."""


_GRACE_MS: Final = 3_600_000
"""Time after the start of a server in which a task can show that it still stages."""
_Work = tuple[str, int] | str
"""A batch of a producer, or the id of a transaction without one."""


def _work_of(staging: Staging) -> _Work:
    return maybe_batch_of(staging.txn_id) or staging.txn_id


class StagedSweep:
    """Drops the stagings of this server that will never be published."""

    def __init__(
        self,
        staged: StagedStates,
        source: DriverPort,
        drop: Drop,
        timeout_ms: int,
        *,
        ask_ms: int = limits.STAGED_ASK_MS,
        grace_ms: int = _GRACE_MS,
    ) -> None:
        self._staged = staged
        self._source = source
        self._drop = drop
        self._timeout_ms = timeout_ms
        self._ask_ms = ask_ms
        self._grace_ms = min(grace_ms, timeout_ms)
        self._quiet_from_ms = 0
        """The last activity of work without any known activity. The first sweep sets it."""
        self._active: dict[_Work, int] = {}
        """The last activity of each work that this process has seen."""
        self._counts: dict[tuple[int, int, str], int] = {}
        """The number of staged batches, by stream, range and id."""

    async def sweep(self, now_ms: int) -> None:
        """Ask about old stagings, and drop those that the placement driver says are dead.

        Raises SbpError if it cannot be asked, or the log has failed.
        """
        active_ms = self._activity(now_ms)
        questions = (
            self._maybe_question(each, now_ms, active_ms[_work_of(each)])
            for each in self._staged.stagings()
        )
        asked = [part for part in questions if part is not None]
        if not asked:
            return
        by_range: dict[tuple[int, int], list[str]] = defaultdict(list)
        for part in await self._source.find_dead(asked):
            by_range[part.stream_id, part.range_index].append(part.txn_id or "")
        drops = [
            self._drop_some(*key, chunk)
            for key, txn_ids in by_range.items()
            for chunk in chunks(txn_ids)
        ]
        outcomes = await asyncio.gather(*drops, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _drop_some(self, stream_id: int, range_index: int, txn_ids: Sequence[str]) -> None:
        record_count = await self._drop(stream_id, range_index, txn_ids)
        if record_count:
            _LOG.info(
                "staged records dropped records=%d range=%d stream=%d transactions=%s",
                record_count,
                range_index,
                stream_id,
                listed(txn_ids),
            )

    def _activity(self, now_ms: int) -> dict[_Work, int]:
        """Return the last activity of each work. A new staged batch renews all stagings of a work.

        The timeout is for abandoned work, not for a long job. After a start it is unknown what was
        active before, so nothing counts as abandoned for a while.
        """
        active: dict[_Work, int] = {}
        counts: dict[tuple[int, int, str], int] = {}
        self._quiet_from_ms = self._quiet_from_ms or now_ms - self._timeout_ms + self._grace_ms
        for each in self._staged.stagings():
            key, work = (each.stream_id, each.range_index, each.txn_id), _work_of(each)
            counts[key] = each.batch_count
            known_ms = self._active.get(work, self._quiet_from_ms)
            has_grown = each.batch_count > self._counts.get(key, each.batch_count)
            latest_ms = now_ms if has_grown else max(known_ms, each.staged_at_ms)
            active[work] = max(active.get(work, 0), latest_ms)
        self._active, self._counts = active, counts
        return active

    def _maybe_question(self, staging: Staging, now_ms: int, active_ms: int) -> TxnPart | None:
        """Return the question about a staging; None while it is new.

        A staging from the future, by a clock that was set back, may have any age.
        """
        age_ms = now_ms - staging.staged_at_ms
        is_worth_asking = age_ms >= self._ask_ms or age_ms < 0
        if now_ms - active_ms >= self._timeout_ms:
            record_count = staging.record_count
        elif maybe_batch_of(staging.txn_id) and is_worth_asking:
            record_count = _ONLY_IF_DECIDED
        else:
            return None
        return TxnPart(staging.txn_id, staging.stream_id, record_count, staging.range_index)
