"""Copy missing entries or records of a range from another server: READ_ENTRIES, both ends.

A copy that is too short appends its missing entries, by number and digest. Maybe no server has them
any more: the cleaner drops entries of settled ranges, and removes the first segments when all in
them is trimmed. Then the *records* of the range are copied, and the batches that are still staged
in it. Only a whole replica that has settled the range with the same digest sends records. Each has
its checksum, and the offsets go on without a gap up to the decided end.

Copied records have no numbers until the range is settled. An interrupted copy goes on behind the
last record, and staged batches are sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.errors import (
    DeadlineExceededError,
    LogCorruptionError,
    LogError,
    OffsetOutOfRangeError,
    ProtocolError,
    SbpError,
    TransportError,
    invalid,
)
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.mending import DamagedEntry
from sbp_core.log.portable import encode_portable
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeState, prefix_of
from sbp_core.log.states.replicated_entries import copied_entry, copy_begun_entry, settled_entry
from sbp_core.log.states.staged_states import staged_entry
from sbp_core.peers.links import Links
from sbp_core.peers.replica_calls import read_entries
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.replicating.secondary import Secondary, check_version
from sbp_core.records import with_base_offset
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.tls import Tls
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import ReadEntriesRequest, ReadEntriesResponse, StreamRange
from sbp_core.wire.status import SUCCESS

_LOG: Final = logging.getLogger(__name__)

_SILENT_SECONDS: Final = 30.0
"""For how long a server that did not answer is asked last."""
_UNREACHABLE: Final = (TransportError, DeadlineExceededError)


class _Wanted(NamedTuple):
    """The fields of READ_ENTRIES: entries by number, or records if `from_offset` is not -1."""

    after_seq: int
    upto_seq: int
    from_offset: int = -1


_Read = Callable[[str], Coroutine[Any, Any, None]]
"""Reads from the server at an address. Raises SbpError."""


class Copier:
    """Completes the copies of this server. `admit` raises if the disk is full."""

    def __init__(
        self,
        log: Log,
        committer: GroupCommitter,
        secondary: Secondary,
        server_id: Callable[[], int],
        tls: Tls | None = None,
        *,
        admit: Callable[[int], None],
    ) -> None:
        self._admit = admit
        self._log = log
        self._committer = committer
        self._secondary = secondary
        self._server_id = server_id
        self._links = Links(Connecting(tls=tls))
        self._loop = asyncio.get_running_loop()
        self._silent_at: dict[str, float] = {}
        """Time of the last failure, by address of a server that has not answered since."""

    async def stop(self) -> None:
        """Close the connections."""
        await self._links.close()

    async def complete(self, hosted: HostedRange, where: StreamRange) -> Entry:
        """Append the entries that a fenced copy lacks; return the entry that settles it.

        Copies records instead if no server has all entries. Raises SbpError.
        """
        end = Prefix(where.end_seq, bytes(where.end_digest))
        error: SbpError | None = None
        have = self._logged(hosted).prefix
        if have is not None:
            if have.seq < end.seq:
                error = await self._from_any(
                    where, lambda each: self._read_entries(hosted, end, each)
                )
            if error is None and self._logged(hosted).prefix != end:
                error = LogCorruptionError(
                    f"the first {end.seq} entries of this copy differ from the decided entries of"
                    " its range"
                )
            if error is None:
                return settled_entry(hosted.key, where.end_offset, end)
            # Records must not follow entries of another history. And appends may wait for the
            # entries of a range that was led here: a copy of records would not decide them.
            if isinstance(error, LogCorruptionError) or hosted.is_led:
                raise error
        failure = await self._from_any(where, lambda each: self._read_records(hosted, where, each))
        if failure is not None:
            raise error or failure
        _LOG.info(
            "records copied stream=%d range=%d end_offset=%d: no server has all its entries",
            *(*hosted.key, where.end_offset),
        )
        return copied_entry(hosted.key, where.end_offset, end)

    async def find_body(self, damaged: DamagedEntry, where: StreamRange) -> tuple[Buffer, ...]:
        """Return the body of a damaged entry from another replica, if its checksum fits.

        The entry is found by number, a batch of a settled range also by offset. Raises SbpError.
        """
        header, key = damaged.header, (where.stream_id, where.range_index)
        assert header is not None
        asked = [_Wanted(damaged.seq - 1, damaged.seq)] if damaged.seq else []
        if header.kind is EntryKind.BATCH and where.end_seq >= 0:
            asked.append(_Wanted(0, where.end_seq, header.base_offset))
        found: list[Entry] = []

        async def read(address: str) -> None:
            error: SbpError = LogError("its number is not known here")
            for each in asked:
                try:
                    _, entries = await self._ask(address, key, each, bytes_max=1)
                    header.check_body(*_body(entries[0]))
                except (SbpError, IndexError) as failure:
                    error = failure if isinstance(failure, SbpError) else error
                else:
                    found.append(entries[0])
                    return
            raise error

        failure = await self._from_any(where, read)
        if failure is not None:
            raise failure
        return _body(found[0])

    async def _from_any(self, where: StreamRange, read: _Read) -> SbpError | None:
        """Read from the other servers, until one succeeds; return the error if none does."""
        errors: list[SbpError] = [LogError("no other server has a copy of the range")]
        for address in self._others(where):
            try:
                await read(address)
            except SbpError as error:
                errors.append(error)
                if isinstance(error, _UNREACHABLE):
                    self._silent_at[address] = self._loop.time()
            else:
                self._silent_at.pop(address, None)
                return None
        return max(reversed(errors), key=_weight)

    def _others(self, where: StreamRange) -> list[str]:
        """Return the addresses of the other servers of a range, in the order to ask them.

        The primary comes last: often it was lost, and a request to it takes the whole timeout. So
        do servers that have not answered lately.
        """
        addresses = [
            each.server.advertise_addr or ""
            for each in reversed(where.servers)
            if each.server is not None and each.server.server_id != self._server_id()
        ]
        since = self._loop.time() - _SILENT_SECONDS
        return sorted(addresses, key=lambda each: self._silent_at.get(each, since) > since)

    async def _read_entries(self, hosted: HostedRange, end: Prefix, address: str) -> None:
        """Append the missing entries up to `end` from a server."""
        have = prefix_of(self._logged(hosted))
        while have.seq < end.seq:
            response, entries = await self._ask(address, hosted.key, _Wanted(have.seq, end.seq))
            if bytes(response.before_digest) != have.digest:
                raise LogCorruptionError(
                    f"the first {have.seq} entries of the copy at {address} differ from those here"
                )
            if not entries or len(entries) > end.seq - have.seq:
                raise ProtocolError(f"{address} answers with {len(entries)} entries")
            self._admit(sum(entry.length for entry in entries))
            await self._secondary.append(hosted, have, entries)
            have = hosted.durable

    async def _read_records(self, hosted: HostedRange, where: StreamRange, address: str) -> None:
        """Append the missing records from a server, then its staged batches."""
        is_begun = False
        while not is_begun or self._logged(hosted).next_offset < where.end_offset:
            offset = self._logged(hosted).next_offset
            response, entries = await self._ask_settled(hosted, where, address, 0, offset)
            at = base_offset = response.base_offset
            if offset >= where.end_offset:  # all records are here, or trimmed
                at = base_offset = where.end_offset
                entries = []
            for entry in entries:
                if entry.kind is not EntryKind.BATCH or entry.base_offset != at or entry.count < 1:
                    raise ProtocolError(f"{address} answers with {entry.kind.name} at {at}")
                at += entry.count
            if at > where.end_offset or (at < where.end_offset and not entries):
                raise ProtocolError(f"{address} answers with records up to {at}")
            if not is_begun or base_offset != offset:
                begun = copy_begun_entry(hosted.key, base_offset, response.txn_ends)
                await self._append(hosted, [begun, *entries])
            else:
                await self._append(hosted, entries)
            is_begun = True
        done = 0
        staged_count = -1
        while done != staged_count:
            response, entries = await self._ask_settled(
                hosted, where, address, done, where.end_offset
            )
            if staged_count not in {-1, response.staged_count}:
                raise LogError(f"transactions ended at {address} while they were copied")
            staged_count = response.staged_count
            done += len(entries)
            is_staged = all(entry.kind is EntryKind.STAGED for entry in entries)
            if not is_staged or done > staged_count or (not entries and done < staged_count):
                raise ProtocolError(f"{address} answers with {done} of {staged_count} batches")
            await self._append(hosted, entries)

    async def _ask_settled(
        self, hosted: HostedRange, where: StreamRange, address: str, after: int, from_offset: int
    ) -> tuple[ReadEntriesResponse, list[Entry]]:
        """Ask a replica for records. Raises LogError unless it settled the range as decided."""
        wanted = _Wanted(after, where.end_seq, from_offset)
        response, entries = await self._ask(address, hosted.key, wanted)
        if bytes(response.end_digest) != bytes(where.end_digest):
            raise LogError(
                f"the copy at {address} does not have the decided end, or sends no records"
            )
        return response, entries

    async def _ask(
        self,
        address: str,
        key: RangeKey,
        wanted: _Wanted,
        bytes_max: int = limits.REPLICATE_FRAME_BYTES,
    ) -> tuple[ReadEntriesResponse, list[Entry]]:
        """Return a server's answer to READ_ENTRIES."""
        return await read_entries(
            self._links, address, key, bytes_max=bytes_max, **wanted._asdict()
        )

    async def _append(self, hosted: HostedRange, entries: Sequence[Entry]) -> None:
        """Append copied entries, unless the range was deleted in between."""
        if hosted.state is not RangeState.FENCED:
            raise LogError(
                f"range {hosted.range_index} of stream {hosted.stream_id} is {hosted.state.value}"
                " here: it is copied no longer"
            )
        self._admit(sum(entry.length for entry in entries))
        await self._committer.submit(entries)

    def _logged(self, hosted: HostedRange) -> LoggedRange:
        logged = self._log.maybe_range(hosted.key)
        assert logged is not None
        return logged


class ReadEntriesHandler:
    """Serves READ_ENTRIES (SPEC "READ_ENTRIES")."""

    def __init__(self, host: RangeHost, log: Log, readers: ThreadPoolExecutor) -> None:
        self._host = host
        self._log = log
        self._readers = readers

    async def __call__(self, call: ServerCall) -> Answer:
        """Answer one request with entries of up to the requested bytes, at least one."""
        check_version(call)
        request = call.decode(ReadEntriesRequest)
        key = (request.stream_id, request.range_index)
        hosted = self._host.table.range_at(*key)
        if not hosted.is_replicated:
            raise invalid(f"range {key[1]} of stream {key[0]} has no other copies")
        logged = self._log.maybe_range(key)
        work = self._entries
        if request.from_offset >= 0:
            _check_settled(request, logged)
            is_staged = logged is not None and request.from_offset >= logged.next_offset
            work = self._staged if is_staged else self._records
        else:
            durable_seq = hosted.durable.seq
            if logged is not None and logged.state is not RangeState.OPEN:
                durable_seq = prefix_of(logged).seq
            if not 0 <= request.after_seq < request.upto_seq <= durable_seq:
                raise OffsetOutOfRangeError.of(
                    f"entries {request.after_seq + 1} to {request.upto_seq} of range {key[1]} of"
                    f" stream {key[0]} are not all here: it has {durable_seq}"
                )
        loop = asyncio.get_running_loop()
        response, entries = await loop.run_in_executor(self._readers, work, request)
        payload: list[Buffer] = [part for entry in entries for part in encode_portable(entry)]
        return Response(response, call.peer.pack(payload))

    def _entries(self, request: ReadEntriesRequest) -> tuple[ReadEntriesResponse, list[Entry]]:
        key = (request.stream_id, request.range_index)
        before = self._log.prefix_at(key, request.after_seq)
        found = self._log.numbered_entries(key, request.after_seq, request.upto_seq)
        entries = list(_within(found, _bytes_max(request)))
        return ReadEntriesResponse(0, SUCCESS, before.digest, len(entries)), entries

    def _records(self, request: ReadEntriesRequest) -> tuple[ReadEntriesResponse, list[Entry]]:
        """Return batches from the one that holds an offset on, or from the first one here.

        Batches that were staged are sent with the offsets at which they were published.
        """
        key = (request.stream_id, request.range_index)
        logged = self._log.maybe_range(key)
        assert logged is not None
        first = max(request.from_offset, logged.start_offset)
        entries: list[Entry] = []
        if first < logged.next_offset:
            slots = self._log.batches_from(key, first)
            for slot, body in self._bodies(key, slots, _bytes_max(request)):
                data = body
                if slot.prefix_bytes:
                    data = memoryview(b"".join(with_base_offset(body, slot.base_offset)))
                entries.append(Entry(EntryKind.BATCH, *key, slot.base_offset, slot.count, data))
        base_offset = entries[0].base_offset if entries else logged.next_offset
        return self._of_settled(logged, len(entries), base_offset), entries

    def _staged(self, request: ReadEntriesRequest) -> tuple[ReadEntriesResponse, list[Entry]]:
        """Return staged batches behind the first `after_seq`, in the order of ids."""
        key = (request.stream_id, request.range_index)
        logged = self._log.maybe_range(key)
        assert logged is not None
        stagings = sorted(
            (each for each in self._log.staged.stagings_of(key[0]) if each.range_index == key[1]),
            key=lambda each: each.txn_id,
        )
        skipped, left = request.after_seq, _bytes_max(request)
        entries: list[Entry] = []
        for staging in stagings:
            first = min(skipped, staging.batch_count)
            skipped -= first
            if left > 0:
                slots = self._log.staged_from(staging, first)
                for at, (slot, body) in enumerate(self._bodies(key, slots, left), first):
                    entries.append(staged_entry(*key, staging.txn_id, at, slot.count, body))
                    left -= entries[-1].length
        count = sum(each.batch_count for each in stagings)
        return self._of_settled(logged, len(entries), -1, count), entries

    def _of_settled(
        self, logged: LoggedRange, count: int, base_offset: int, staged_count: int = 0
    ) -> ReadEntriesResponse:
        ends = self._log.staged.encode_ends(*logged.key)
        places = (logged.digest if logged.seq else b"", base_offset, staged_count)
        return ReadEntriesResponse(0, SUCCESS, b"", count, *places, ends)

    def _bodies(
        self, key: RangeKey, slots: Iterable[Slot], bytes_max: int
    ) -> Iterator[tuple[Slot, memoryview]]:
        """Yield batches and their bodies, at least one. Raises LogError for a damaged batch."""
        left = bytes_max
        for slot in slots:
            if left < slot.body_length and left < bytes_max:
                return
            left -= slot.body_length
            bodies = read_bodies(key, [slot], self._log.recent)
            if bodies.error is not None:
                self._log.suspects.add(slot.view.segment.base)
                raise bodies.error
            yield slot, bodies.data[0]


def _weight(error: SbpError) -> tuple[bool, bool]:
    """Rank an error: damage counts most, then a server that may be back soon."""
    return isinstance(error, LogCorruptionError), isinstance(error, _UNREACHABLE)


def _body(entry: Entry) -> tuple[Buffer, ...]:
    return (entry.prefix, entry.body) if entry.prefix else (entry.body,)


def _check_settled(request: ReadEntriesRequest, logged: LoggedRange | None) -> None:
    """Raise OffsetOutOfRangeError unless a range is settled with `upto_seq` entries, and whole."""
    is_settled = logged is not None and logged.state is RangeState.SEALED and logged.is_whole
    if not is_settled or logged is None or logged.seq != request.upto_seq or request.after_seq < 0:
        raise OffsetOutOfRangeError.of(
            f"range {request.range_index} of stream {request.stream_id} is not settled here with"
            f" {request.upto_seq} entries, or is damaged: its records are to be read elsewhere"
        )


def _bytes_max(request: ReadEntriesRequest) -> int:
    return min(request.bytes_max, limits.REPLICATE_FRAME_BYTES)


def _within(entries: Iterator[Entry], bytes_max: int) -> Iterator[Entry]:
    """Yield the first entries, at least one; never a writer's mark without its batch."""
    left = bytes_max
    is_begun = False
    for entry in entries:
        if left < entry.length and left < bytes_max and not is_begun:
            return
        left -= entry.length
        is_begun = entry.kind is EntryKind.WRITER_MARK
        yield entry
