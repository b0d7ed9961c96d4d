"""The copies of ranges that other servers lead: REPLICATE (SPEC "REPLICATE").

Entries are appended only behind the entry with the number and the digest that the primary names. So
a copy is always a prefix of the primary's entries. The answer says which entries are durable. They
become readable when the primary reports that they are committed.

The end of transactions names batches by positions in the log. It waits until the named batches are
in the log here, and is written with their positions here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sbp_core.errors import (
    LogCorruptionError,
    RangeSealedError,
    SbpError,
    StatusCode,
    UnsupportedError,
    WriterGapError,
    invalid,
)
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable, to_local
from sbp_core.log.states.range_states import RangeKey, RangeState
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS, number_after
from sbp_core.log.states.staged_entries import decode_end, decode_portable_end, decode_prefix
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.log.states.writer_states import check_writers
from sbp_core.rangeserver.appending.append_items import cut_payload
from sbp_core.rangeserver.appending.commit import GroupCommitter, Written
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.records.encodings import accept_batch
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.session.negotiation import REPLICATION_VERSIONS
from sbp_core.wire.headers import (
    ReplicatedRange,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
)
from sbp_core.wire.status import SUCCESS, status_for


@dataclass(slots=True)
class _Tail:
    """The end of a copy with all accepted entries; `done` is done when they are durable."""

    end: Prefix
    done: asyncio.Future[Written] | asyncio.Task[Written] | None = None


_GROWING: Final = {RangeState.OPEN, RangeState.FENCED}
"""States in which entries are appended: from the primary, or to settle the copy."""

_Accepted = tuple[HostedRange, asyncio.Future[Written] | None]
"""A range, and a future for the durability of its entries."""


class Secondary:
    """Appends the entries of ranges that are led elsewhere, in order."""

    def __init__(self, staged: StagedStates, committer: GroupCommitter) -> None:
        self._staged = staged
        self._committer = committer
        self._tails: dict[RangeKey, _Tail] = {}

    def append(
        self, hosted: HostedRange, before: Prefix, entries: Sequence[Entry], memory_bytes: int = 0
    ) -> asyncio.Future[Written]:
        """Append entries behind `before`; the future is done when they are durable.

        Raises WriterGapError if other entries come next, InvalidRequestError for entries that
        cannot belong to the range.
        """
        if hosted.state not in _GROWING:
            raise _not_growing(hosted)
        tail = self._tail_of(hosted)
        if before != tail.end:
            raise WriterGapError.of(
                f"entry {before.seq + 1} of range {hosted.range_index} of stream"
                f" {hosted.stream_id} was not appended: the copy here has {tail.end.seq} entries,"
                " or others",
                WriterGapError.encode_expected(tail.end.seq + 1),
            )
        end = tail.end
        for entry in entries:
            if (entry.stream_id, entry.range_index) != hosted.key or (
                entry.kind not in NUMBERED_KINDS
            ):
                raise invalid(
                    f"an entry of kind {entry.kind.name} of range {entry.range_index} of stream"
                    f" {entry.stream_id} is sent for range {hosted.range_index} of stream"
                    f" {hosted.stream_id}"
                )
            check_content(entry)
            end = number_after(end, entry)
        if entries and entries[-1].kind is EntryKind.WRITER_MARK:
            raise invalid(
                f"the entries for range {hosted.range_index} of stream {hosted.stream_id} end with"
                " the mark of a writer, and its batch must come with it"
            )
        done: asyncio.Future[Written]
        has_ends = any(entry.kind is EntryKind.TXN_END for entry in entries)
        is_waiting = isinstance(tail.done, asyncio.Task) and not tail.done.done()
        if has_ends or is_waiting:
            done = asyncio.create_task(
                self._append_in_turn(hosted, tail.done, entries, memory_bytes)
            )
        else:
            done = self._committer.submit(entries, memory_bytes, hosted.key)
        tail.end, tail.done = end, done
        done.add_done_callback(partial(self._on_done, hosted.key, tail))
        return done

    def maybe_pending(self, hosted: HostedRange) -> asyncio.Future[Written] | None:
        """Return the future of the accepted entries, None if all are durable."""
        tail = self._tails.get(hosted.key)
        return None if tail is None else tail.done

    def _tail_of(self, hosted: HostedRange) -> _Tail:
        tail = self._tails.get(hosted.key)
        # After a failure the log decides what is here: the primary asks, and sends again.
        if tail is None or _has_failed(tail.done):
            self._committer.forgive(hosted.key)
            tail = self._tails[hosted.key] = _Tail(hosted.durable)
        return tail

    async def _append_in_turn(
        self,
        hosted: HostedRange,
        earlier: asyncio.Future[Written] | None,
        entries: Sequence[Entry],
        memory_bytes: int,
    ) -> Written:
        """Append entries behind `earlier`; each end of transactions in a group of its own.

        Nothing is appended behind a fence that came in between, because the placement driver was
        answered without these entries.
        """
        accepted_in = hosted.state

        def submit(group: Sequence[Entry], memory_bytes: int = 0) -> asyncio.Future[Written]:
            if hosted.state is not accepted_in:
                raise _not_growing(hosted)
            return self._committer.submit(group, memory_bytes, hosted.key)

        written = Written(0) if earlier is None else await earlier
        group: list[Entry] = []
        for entry in entries:
            if entry.kind is EntryKind.TXN_END:
                if group:
                    await submit(group)
                    group = []
                written = await submit([to_local(entry, self._staged)])
            else:
                group.append(entry)
        if group:
            written = await submit(group, memory_bytes)
        return written

    def _on_done(self, key: RangeKey, tail: _Tail, done: asyncio.Future[Written]) -> None:
        """Forget a tail when its last entries are durable, or failed."""
        if tail.done is done and self._tails.get(key) is tail:
            del self._tails[key]


class ReplicateHandler:
    """Serves REPLICATE. Each range of a frame succeeds or fails by itself.

    While the disk is full entries are refused like appends. The ranges then go on elsewhere.
    """

    def __init__(self, host: RangeHost, secondary: Secondary, disk_space: DiskSpace) -> None:
        self._host = host
        self._secondary = secondary
        self._disk_space = disk_space

    async def __call__(self, call: ServerCall) -> Answer:
        """Accept one frame, and answer when its entries are durable."""
        check_version(call)
        request = call.decode(ReplicateRequest)
        sent = list(cut_payload(request.ranges, call.payload, lambda each: each.entries_length))
        await self._host.learn((each.stream_id, each.range_index) for each in request.ranges)
        accepted = [
            self._accept_one(each, part, call.memory_bytes if at == 0 else 0)
            for at, (each, part) in enumerate(sent)
        ]
        results = [
            await self._result(each, outcome)
            for (each, _), outcome in zip(sent, accepted, strict=True)
        ]
        return Response(ReplicateResponse(0, tuple(results), SUCCESS))

    def _accept_one(
        self, sent: ReplicatedRange, part: memoryview, memory_bytes: int
    ) -> _Accepted | SbpError:
        try:
            hosted = self._host.table.range_at(sent.stream_id, sent.range_index)
            self._host.check_secondary(hosted)
            if part:
                before = Prefix(sent.before_seq, bytes(sent.before_digest))
                entries = decode_portable(part)
                self._disk_space.admit(len(part))
                self._secondary.append(hosted, before, entries, memory_bytes)
            pending = self._secondary.maybe_pending(hosted)
        except SbpError as error:
            return error
        # Noted at once for records that are durable, and in `_result` for those of this frame.
        self._host.note_committed(hosted, sent.committed_offset)
        return hosted, pending

    async def _result(
        self, sent: ReplicatedRange, outcome: _Accepted | SbpError
    ) -> ReplicateResult:
        place = (sent.stream_id, sent.range_index)
        if isinstance(outcome, SbpError):
            return ReplicateResult(*place, status=status_for(outcome))
        hosted, pending = outcome
        try:
            if pending is not None:
                await asyncio.shield(pending)
        except SbpError as error:
            return ReplicateResult(*place, status=status_for(error))
        self._host.note_committed(hosted, sent.committed_offset)
        return ReplicateResult(*place, hosted.durable.seq, hosted.durable.digest, SUCCESS)


def check_version(call: ServerCall) -> None:
    """Raise UnsupportedError unless the connection has agreed on a version of replication."""
    if not call.agreement.replication_version:
        raise UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            f"{call.opcode.name} needs the feature `replication` in a version that both servers"
            f" know, and this one knows {', '.join(map(str, REPLICATION_VERSIONS))}: upgrade the"
            " older server",
        )


def _has_failed(done: asyncio.Future[Written] | None) -> bool:
    return done is not None and done.done() and (done.cancelled() or done.exception() is not None)


def check_content(entry: Entry) -> None:
    """Raise SbpError if the content of an entry from another server is invalid.

    Whether the entry follows from the entries before it is checked when it is written.
    """
    match entry.kind:
        case EntryKind.BATCH | EntryKind.STAGED:
            if entry.kind is EntryKind.STAGED:
                decode_prefix(entry.prefix)
            batch = accept_batch(entry.body)
            is_placed = entry.kind is EntryKind.STAGED or batch.base_offset == entry.base_offset
            if batch.record_count != entry.count or not is_placed:
                raise LogCorruptionError(
                    f"an entry of {entry.count} records at offset {entry.base_offset} has a batch"
                    f" of {batch.record_count} at {batch.base_offset}"
                )
        case EntryKind.TXN_END:
            is_commit, _ = decode_portable_end(entry)
            if not is_commit:
                decode_end(entry)
        case _:
            check_writers(entry)


def _not_growing(hosted: HostedRange) -> SbpError:
    return RangeSealedError.of(
        f"range {hosted.range_index} of stream {hosted.stream_id} is {hosted.state.value} here; it"
        " accepts no entries any more"
    )
