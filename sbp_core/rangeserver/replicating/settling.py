"""How the copies of a range that has ended become equal, and how a range without a primary ends.

A range ends when the placement driver has decided with which entries: their number and digest. A
copy that has other ones is settled here. One that is shorter reads what it lacks from another
server, and one that is longer cuts what was never committed. Then the range is sealed here, and all
of it may be read.

The decision is looked up at the placement driver, when that announces it, and every now and then
while there are ranges that are fenced. A replicated range that is found open in the log at the
start has no primary any more, if this server was it: the placement driver is asked to end it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from sbp_core import limits
from sbp_core.client.io.aio_transport import AsyncPool, AsyncRunner
from sbp_core.client.programs import calls
from sbp_core.client.programs.program import Call
from sbp_core.client.types import Connecting
from sbp_core.errors import LogError, OffsetOutOfRangeError, ProtocolError, SbpError, invalid
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable, encode_portable
from sbp_core.log.states.range_states import RangeKey, RangeState
from sbp_core.log.states.replicated_entries import settled_entry
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.hosting import DriverPort, RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.rangeserver.replicating.secondary import Secondary
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.server.dispatch import ServerCall
from sbp_core.server.runtime import cancel_all
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import (
    ReadEntriesRequest,
    ReadEntriesResponse,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, check_status

_LOG: Final = logging.getLogger(__name__)
_ROUND_SECONDS: Final = 10
"""How often open copies are looked up: a server that was cut off missed that a range ended."""
_HAND_OVER_SECONDS: Final = 3
"""How long a server that stops waits until its streams go on at other servers."""
_HAND_OVER_STEP_SECONDS: Final = 0.02


class Settler:
    """Settles the ranges of this server that have ended, from its making until `stop`."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        committer: GroupCommitter,
        secondary: Secondary,
        driver: DriverPort,
        *,
        disk_space: DiskSpace,
        readers: ThreadPoolExecutor,
    ) -> None:
        self._host = host
        self._log = log
        self._committer = committer
        self._secondary = secondary
        self._driver = driver
        self._disk_space = disk_space
        self._readers = readers
        self._pool = AsyncPool(Connecting())
        self._loop = asyncio.get_running_loop()
        self._at_work: dict[RangeKey, asyncio.Task[None]] = {}
        self._failures: dict[RangeKey, tuple[float, float]] = {}
        """When to try again, and the seconds until the next time, of what cannot be settled yet."""
        self._next_round = 0.0
        self._asked_at: dict[RangeKey, float] = {}
        """When the placement driver was asked last to end a range."""
        self._inherited = {each.key for each in host.table.replicated() if not each.is_led}
        """Ranges in the log since before the start that this server may have led."""
        self._looking = self._loop.create_task(self._keep_looking())
        host.on_ended = self.settle_soon

    def settle_soon(self, ended: Sequence[StreamRange]) -> None:
        """Settle ranges with these ends, in the background."""
        for where in ended:
            key = (where.stream_id, where.range_index)
            try_at, _ = self._failures.get(key, (0.0, 0.0))
            if key not in self._at_work and self._loop.time() >= try_at:
                task = self._loop.create_task(self._try_to_settle(where))
                self._at_work[key] = task
                task.add_done_callback(partial(self._on_done, key))

    def _on_done(self, key: RangeKey, task: asyncio.Task[None]) -> None:
        del self._at_work[key]
        if not task.cancelled():
            task.exception()

    async def hand_over(self) -> None:
        """Let streams go on at other servers, before this one stops.

        Appends that wait to be committed are acknowledged once the ends of their ranges are
        decided. There is a timeout, for a server that is alone or a placement driver that is down.
        """
        if not self._host.table.replicated():
            return
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._driver.announce_leaving()
                led = self._host.primary.led()
                refused = await self._driver.ask_to_seal(led) if led else set()
                while any(stream_id not in refused for stream_id, _ in self._host.primary.led()):
                    await self._look()
                    await asyncio.sleep(_HAND_OVER_STEP_SECONDS)
        except (SbpError, TimeoutError) as error:
            left = len(self._host.primary.led())
            _LOG.warning("ranges not handed over: ranges=%d: %s", left, error or "timeout")
        else:
            _LOG.info("ranges handed over: ranges=%d", len(led) - len(refused))

    async def stop(self) -> None:
        """Stop; what is not settled will be after the next start."""
        await cancel_all([self._looking, *self._at_work.values()])
        await self._pool.close()

    async def _keep_looking(self) -> None:
        """Look up what is decided, and ask for what should be."""
        while True:
            try:
                await self._look()
            except SbpError as error:
                _LOG.warning("ends of ranges cannot be looked up now: %s", error)
            except Exception:  # noqa: BLE001 - copies must be settled after the next look
                _LOG.exception("ends of ranges not looked up: unexpected error")
            await asyncio.sleep(limits.REPLICA_CHECK_INTERVAL_MS / 1000)

    async def _look(self) -> None:
        troubled = set(self._host.primary.troubled(is_full=self._disk_space.is_refusing))
        now = self._loop.time()
        is_round = now >= self._next_round
        if is_round:
            self._next_round = now + _ROUND_SECONDS
        undecided = [
            hosted
            for hosted in self._host.table.replicated()
            if self._has_no_primary(hosted) or is_round or hosted.key in troubled
        ]
        if not undecided:
            return
        placed = await self._driver.list_hosted_ranges(
            list(dict.fromkeys(each.stream_id for each in undecided))
        )
        where = {
            (each.stream_range.stream_id, each.stream_range.range_index): each.stream_range
            for each in placed
        }
        known = [(hosted, where[hosted.key]) for hosted in undecided if hosted.key in where]
        self._inherited &= {hosted.key for hosted, each in known if self._was_first(each)}
        self.settle_soon([each for _, each in known if each.end_seq >= 0])
        asked = {
            key for key, at in self._asked_at.items() if 1000 * (now - at) < limits.COPY_BEHIND_MS
        }
        left = [
            hosted.key
            for hosted, each in known
            if each.end_seq < 0
            and self._was_first(each)
            and (self._has_no_primary(hosted) or hosted.key in troubled)
            and hosted.key not in asked
        ]
        self._asked_at |= dict.fromkeys(left, now)
        if left:
            await self._driver.ask_to_seal(left)

    def _has_no_primary(self, hosted: HostedRange) -> bool:
        return hosted.state is RangeState.FENCED or hosted.key in self._inherited

    def _was_first(self, where: StreamRange) -> bool:
        first = where.servers[0].server
        return first is not None and first.server_id == self._driver.server_id

    async def _try_to_settle(self, where: StreamRange) -> None:
        hosted = self._host.table.range_at(where.stream_id, where.range_index)
        if hosted.end_offset is not None:
            return
        try:
            await self._settle(hosted, where)
            if hosted.start_offset < min(where.start_offset, where.end_offset):
                await self._host.trim(where.stream_id, where.start_offset)
        except (SbpError, OSError) as error:
            _, last = self._failures.get(hosted.key, (0.0, 0.0))
            wait = min(
                max(2 * last, limits.REPLICA_CHECK_INTERVAL_MS / 1000),
                limits.SETTLE_BACKOFF_MS_MAX / 1000,
            )
            self._failures[hosted.key] = (self._loop.time() + wait, wait)
            _LOG.warning(
                "copy not settled: stream=%d range=%d retry_in_s=%.1f: %s",
                *(*hosted.key, wait, error),
            )
        else:
            self._failures.pop(hosted.key, None)
            self._asked_at.pop(hosted.key, None)
            _LOG.info(
                "copy settled: stream=%d range=%d end_offset=%d", *hosted.key, where.end_offset
            )

    async def _settle(self, hosted: HostedRange, where: StreamRange) -> None:
        """Make the entries of a copy those with which its range ended. Raises SbpError."""
        end = Prefix(where.end_seq, bytes(where.end_digest))
        await self._host.seal(*hosted.key)  # fenced: nothing else is appended
        logged = self._log.maybe_range(hosted.key)
        assert logged is not None
        if not logged.is_whole:
            raise LogError(
                f"entries behind the first {_seq(logged.prefix)} are damaged here; this copy cannot"
                " be completed yet"
            )
        if _seq(logged.prefix) > end.seq:
            cut = await self._loop.run_in_executor(
                self._readers, self._log.cut, hosted.key, where.end_offset, end
            )
            await self._committer.submit([cut])
            return
        if _seq(logged.prefix) < end.seq:
            await self._complete(hosted, logged.prefix or Prefix(), end, where)
            logged = self._log.maybe_range(hosted.key)
            assert logged is not None
        if logged.prefix != end:
            raise LogError(
                f"the first {end.seq} entries of this copy are not those with which its range ended"
            )
        await self._committer.submit([settled_entry(hosted.key, where.end_offset, end)])

    async def _complete(
        self, hosted: HostedRange, have: Prefix, end: Prefix, where: StreamRange
    ) -> None:
        """Append the entries that a copy lacks, from whichever of the other servers has them."""
        reason: SbpError | None = None
        for replica in where.servers:
            address = replica.server.advertise_addr if replica.server is not None else None
            is_here = replica.server is None or replica.server.server_id == self._driver.server_id
            while address and not is_here and have.seq < end.seq:
                try:
                    have = await self._read_on(hosted, have, end, address)
                except SbpError as error:
                    reason = error
                    break
        if have.seq < end.seq:
            raise reason or LogError("no other server has a copy of the range")

    async def _read_on(
        self, hosted: HostedRange, have: Prefix, end: Prefix, address: str
    ) -> Prefix:
        """Append the next entries that a server has; return what is here then."""
        timeout_ms = limits.REQUEST_TIMEOUT_MS
        request = ReadEntriesRequest(
            timeout_ms, *hosted.key, have.seq, end.seq, limits.REPLICATE_FRAME_BYTES
        )
        call = Call(
            address, Opcode.READ_ENTRIES, request, timeout_ms, feature=FeatureName.REPLICATION
        )
        frames = await AsyncRunner(self._pool).run(calls.exchange(call))
        for frame in frames:
            response = decode_header(ReadEntriesResponse, frame.header)
            check_status(response.status)
            if bytes(response.before_digest) != have.digest:
                raise LogError(
                    f"the first {have.seq} entries of the copy at {address} are not those here"
                )
            entries = decode_portable(memoryview(frame.payload))
            if not entries or len(entries) > end.seq - have.seq:
                raise ProtocolError(f"{address} answers with {len(entries)} entries")
            await self._secondary.append(hosted, have, entries)
            have = hosted.durable
        return have


class ReadEntriesHandler:
    """Serves READ_ENTRIES: what another copy lacks (SPEC "READ_ENTRIES")."""

    def __init__(self, host: RangeHost, log: Log, readers: ThreadPoolExecutor) -> None:
        self._host = host
        self._log = log
        self._readers = readers

    async def __call__(self, call: ServerCall) -> None:
        """Answer one request with as many entries as it asks for bytes, at least one."""
        request = call.decode(ReadEntriesRequest)
        key = (request.stream_id, request.range_index)
        hosted = self._host.table.range_at(*key)
        if not hosted.is_replicated:
            raise invalid(f"range {key[1]} of stream {key[0]} has no other copies")
        logged = self._log.maybe_range(key)
        durable_seq = hosted.durable.seq
        if logged is not None and logged.state is not RangeState.OPEN:
            durable_seq = _seq(logged.prefix)
        if not 0 <= request.after_seq < request.upto_seq <= durable_seq:
            raise OffsetOutOfRangeError.of(
                f"entries {request.after_seq + 1} to {request.upto_seq} of range {key[1]} of stream"
                f" {key[0]} are not all here: it has {durable_seq}"
            )
        loop = asyncio.get_running_loop()
        before, entries = await loop.run_in_executor(self._readers, self._read, request)
        payload: list[Buffer] = [part for entry in entries for part in encode_portable(entry)]
        await call.respond(ReadEntriesResponse(0, SUCCESS, before.digest, len(entries)), payload)

    def _read(self, request: ReadEntriesRequest) -> tuple[Prefix, list[Entry]]:
        key = (request.stream_id, request.range_index)
        before = self._log.prefix_at(key, request.after_seq)
        found = self._log.numbered_entries(key, request.after_seq, request.upto_seq)
        bytes_max = min(request.bytes_max, limits.REPLICATE_FRAME_BYTES)
        return before, list(_within(found, bytes_max))


def _within(entries: Iterator[Entry], bytes_max: int) -> Iterator[Entry]:
    """Yield the first entries, at least one; a mark of a writer never without its batch."""
    left = bytes_max
    is_begun = False
    for entry in entries:
        if left < entry.length and left < bytes_max and not is_begun:
            return
        left -= entry.length
        is_begun = entry.kind is EntryKind.WRITER_MARK
        yield entry


def _seq(prefix: Prefix | None) -> int:
    return 0 if prefix is None else prefix.seq
