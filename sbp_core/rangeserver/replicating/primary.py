"""The ranges that this process leads: which entries are committed, and who is told.

An entry of a led range is numbered when its group is written, and sent to the secondaries at the
same time (peer_link.py). It is committed when it is durable on `ack_count` replicas, this one
included (`sbp_core.replication.committed_seq`). Then it is published, and its submission is
acknowledged.

A led range ends when it is settled, with decided entries. Waiting entries behind the decided end
are truncated. Waiting entries before it may be on this disk alone, if shorter copies answered the
fence. They are acknowledged only when enough other servers have settled the range: members, and
servers that got a copy since. A process leads a range until it is settled or the process stops, and
never again: a range that is in the log at the start has no primary any more.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError
from sbp_core.log.entry import Entry
from sbp_core.log.portable import encode_portable
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeState, prefix_of
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS, number_after
from sbp_core.rangeserver.appending.commit import Copies, Finish
from sbp_core.rangeserver.replicating.peer_link import Copy, CopyState, Numbered, PeerLink
from sbp_core.rangeserver.replicating.settled_ranges import SettledRanges
from sbp_core.replication import Prefix, committed_seq
from sbp_core.segment_format import EntryKind
from sbp_core.server.runtime import cancel_all
from sbp_core.tls import Tls

_LOG: Final = logging.getLogger(__name__)
_ENDED: Final = {RangeState.SEALED, RangeState.DELETED}
_ASK_AGAIN_MS: Final = 20
_ASK_AGAIN_MS_MAX: Final = 500
"""The first and the longest backoff between questions whether a server has settled a range."""
_COMPLETE_STEPS: Final = 100
_COMPLETE_STEP_SECONDS: Final = 0.005
"""Number and length of the waits for entries that were sent before a range was fenced."""
_LIST_AGAIN_SECONDS: Final = 1.0
"""Pause before the placement driver is asked again which servers have a copy of a range."""
_RANGES_PER_TURN: Final = 1000
"""Ranges whose copies are counted in one turn of the loop."""

FindServers = Callable[[RangeKey], Awaitable[Collection[str]]]
"""Returns the addresses of the other servers that have a range now. Raises SbpError."""


@dataclass(frozen=True, slots=True)
class RangeMembers:
    """The other servers of a range, and the number of replicas that a commit needs."""

    addresses: tuple[str, ...]
    ack_count: int


@dataclass(slots=True)
class CopyLag:
    """The lag of a server: the entries that its copies of ranges led here lack."""

    entries: int = 0
    byte_count: int = 0
    seconds: float = 0.0
    """Lag of the slowest copy, in seconds."""
    lost_count: int = 0
    """Number of lost copies."""
    is_down: bool = False
    """Whether the last attempt to send failed."""


class _Fate(enum.Enum):
    """The outcome of entries."""

    COMMITTED = "they are on enough disks"
    TRUNCATED = "their range ended before them"
    UNSETTLED = "they are in their range, and on too few disks in the time that a request has"


class _Submission:
    """Entries in several ranges that are acknowledged together."""

    def __init__(self, count: int, finish: Finish) -> None:
        self._count = count
        self._fates: dict[_Fate, list[RangeKey]] = {fate: [] for fate in _Fate}
        self._finish = finish

    def decide(self, key: RangeKey, fate: _Fate) -> None:
        """Note the fate of the entries in one range; call `finish` after the last."""
        self._fates[fate].append(key)
        self._count -= 1
        if not self._count:
            self._finish(self._fates[_Fate.TRUNCATED], self._fates[_Fate.UNSETTLED])


class _LedRange:
    """A range that this process leads, or led until it ended."""

    def __init__(self, ack_count: int) -> None:
        self.ack_count = ack_count
        self.copies: list[tuple[PeerLink, Copy]] = []
        self.numbered = Prefix()
        """The entries that were numbered and sent."""
        self.durable_seq = 0
        """The last durable entry here; of an ended range, its last entry."""
        self.own_behind_since: float | None = None
        """Time since when entries wait for the disk here without progress; None if none does."""
        self.committed_seq = 0
        self.is_fenced = False
        self.asked_at = 0.0
        self.unpublished: deque[LoggedRange] = deque()
        """States of the range after durable entries that are not committed yet."""
        self.waiting: deque[tuple[int, _Submission]] = deque()
        """Submissions that are durable here, with the number of their last entry."""
        self.settled: set[str] = set()
        """Other servers that have settled the ended range, members or not."""

    def note_committed(self) -> None:
        """Advance `committed_seq` to the entries that are on enough disks."""
        # A server that has settled has all entries of the ended range, whatever it acknowledged.
        others = [copy.acked.seq for link, copy in self.copies if link.address not in self.settled]
        whole = [self.durable_seq] * (1 + len(self.settled))
        committed = committed_seq(whole + others, self.ack_count)
        self.committed_seq = max(self.committed_seq, min(self.durable_seq, committed))

    def behind_since(self) -> float | None:
        """Return the time since when a copy lacks entries, also the one here; None if none does."""
        times = [copy.behind_since for _, copy in self.copies if copy.behind_since is not None]
        times += [] if self.own_behind_since is None else [self.own_behind_since]
        return min(times, default=None)

    @property
    def is_stuck(self) -> bool:
        """Whether too few copies can go on to commit anything."""
        usable = [
            link
            for link, copy in self.copies
            if copy.state is not CopyState.LOST and not link.is_down
        ]
        return bool(self.waiting) and 1 + len(usable) < self.ack_count


class PrimaryRanges(Copies):
    """The ranges that this process leads. `show` makes the committed state of a range visible."""

    def __init__(
        self,
        show: Callable[[LoggedRange], None],
        server_id: Callable[[], int],
        find_servers: FindServers,
        settled: SettledRanges,
        tls: Tls | None = None,
    ) -> None:
        self._show = show
        self._find_servers = find_servers
        self._settled = settled
        self._tls = tls
        self._server_id = server_id
        self._led: dict[RangeKey, _LedRange] = {}
        self._unsettled: dict[RangeKey, _LedRange] = {}
        """Ended ranges with entries that wait until other servers have settled."""
        self._asking: set[asyncio.Task[None]] = set()
        self._links: dict[str, PeerLink] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def lead(self, logged: LoggedRange, members: RangeMembers) -> None:
        """Lead a range from its first entry on."""
        led = self._led[logged.key] = _LedRange(members.ack_count)
        for address in members.addresses:
            copy = Copy(logged.key, logged.start_offset, lambda: self._advance(logged.key))
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = PeerLink(address, self._server_id, self._tls)
            led.copies.append((link, copy))
            link.open(copy)

    def send(self, entries: Sequence[Entry]) -> Mapping[RangeKey, int]:
        """Number and send entries; return the last number in each led range."""
        numbers: dict[RangeKey, int] = {}
        if not self._led:
            return numbers
        for entry in entries:
            key = (entry.stream_id, entry.range_index)
            led = self._led.get(key)
            if led is None or entry.kind not in NUMBERED_KINDS:
                continue
            led.numbered = number_after(led.numbered, entry)
            if led.own_behind_since is None:
                led.own_behind_since = asyncio.get_running_loop().time()
            parts = encode_portable(entry)
            is_begun = entry.kind is EntryKind.WRITER_MARK
            numbered = Numbered(led.numbered, parts, sum(map(len, parts)), is_begun)
            for link, copy in led.copies:
                link.add(copy, numbered)
            numbers[key] = led.numbered.seq
        return numbers

    def flush(self) -> None:
        """Send numbered entries that wait for more."""
        for link in self._links.values():
            link.flush()

    def when_decided(self, numbers: Mapping[RangeKey, int], finish: Finish) -> None:
        """Call `finish` when the fate of the entries in all these ranges is known."""
        submission = _Submission(len(numbers), finish)
        for key, seq in numbers.items():
            led = self._led.get(key)
            if led is None:  # settled or deleted since
                submission.decide(key, _Fate.TRUNCATED)
            elif seq <= led.committed_seq:
                submission.decide(key, _Fate.COMMITTED)
            else:
                led.waiting.append((seq, submission))

    def on_durable(self, logged: LoggedRange) -> None:
        """Note the state of a range after a durable group; publish its committed part."""
        led = self._led.get(logged.key)
        if led is None:
            self._show(logged)
        elif logged.state in _ENDED:
            self._end(led, logged)
        else:
            led.is_fenced = led.is_fenced or logged.state is RangeState.FENCED
            led.durable_seq = prefix_of(logged).seq
            is_behind = led.durable_seq < led.numbered.seq
            led.own_behind_since = asyncio.get_running_loop().time() if is_behind else None
            led.unpublished.append(logged)
            self._advance(logged.key)

    def led(self) -> list[RangeKey]:
        """Return the ranges that are led here and have not ended."""
        return list(self._led)

    def troubled(self, *, is_full: bool) -> list[RangeKey]:
        """Return the ranges that should go on with other servers; each only once in a while.

        A copy has lacked entries for too long, nothing can be committed, or the disk here is full
        or slow.
        """
        now = asyncio.get_running_loop().time()
        found = []
        for key, led in self._led.items():
            since = -inf if is_full else led.behind_since()
            if led.is_fenced or since is None:
                continue
            patience_ms = limits.COPY_STUCK_MS if led.is_stuck else limits.COPY_BEHIND_MS
            pause_ms = limits.SEAL_AGAIN_MS if led.is_stuck else limits.COPY_BEHIND_MS
            is_due = 1000 * (now - led.asked_at) >= pause_ms
            if 1000 * (now - since) >= patience_ms and is_due:
                led.asked_at = now
                found.append(key)
        return found

    def is_everywhere(self, keys: Iterable[RangeKey]) -> bool:
        """Whether all other servers that answer have all entries of led ranges."""
        led = (self._led[key] for key in keys if key in self._led)
        return all(
            copy.acked == each.numbered or copy.state is CopyState.LOST or link.is_down
            for each in led
            for link, copy in each.copies
        )

    def is_committed(self, keys: Iterable[RangeKey]) -> bool:
        """Whether all sent entries of led ranges are committed, or cannot be now."""
        led = (self._led[key] for key in keys if key in self._led)
        return all(each.committed_seq >= each.numbered.seq or each.is_stuck for each in led)

    async def complete(
        self, keys: Sequence[RangeKey], is_complete: Callable[[Sequence[RangeKey]], bool]
    ) -> None:
        """Wait until fenced ranges are complete, but only briefly: a server may be slow."""
        for _ in range(_COMPLETE_STEPS):
            if is_complete(keys):
                return
            await asyncio.sleep(_COMPLETE_STEP_SECONDS)

    @property
    def incomplete_count(self) -> int:
        """Number of led ranges with a replica that has lacked entries for COPY_BEHIND_MS."""
        now = asyncio.get_running_loop().time()
        times = (led.behind_since() for led in self._led.values())
        return sum(
            since is not None and 1000 * (now - since) >= limits.COPY_BEHIND_MS for since in times
        )

    async def lags(self) -> dict[str, CopyLag]:
        """Return the lag of the other servers, by address."""
        now = asyncio.get_running_loop().time()
        found = {address: CopyLag(is_down=link.is_down) for address, link in self._links.items()}
        for at, led in enumerate(list(self._led.values())):
            if at and not at % _RANGES_PER_TURN:
                await asyncio.sleep(0)
            for link, copy in led.copies:
                lag = found.setdefault(link.address, CopyLag())
                lag.entries += len(copy.window)
                lag.byte_count += copy.window_bytes
                lag.lost_count += copy.state is CopyState.LOST
                if copy.behind_since is not None:
                    lag.seconds = max(lag.seconds, now - copy.behind_since)
        return found

    @property
    def unsettled_count(self) -> int:
        """Number of ended ranges with entries that wait until other servers have settled."""
        return sum(bool(led.waiting) for led in self._unsettled.values())

    def give_up(self, key: RangeKey) -> None:
        """Leave it open whether the waiting entries of a range were committed."""
        led = self._led.get(key)
        while led is not None and led.waiting:
            led.waiting.popleft()[1].decide(key, _Fate.UNSETTLED)

    async def stop(self) -> None:
        """Close the links. Waiting entries are not acknowledged any more."""
        await cancel_all(self._asking)
        await self._settled.stop()
        await asyncio.gather(*self._closing, *(link.stop() for link in self._links.values()))

    def _advance(self, key: RangeKey) -> None:
        """Publish and acknowledge entries that are committed now."""
        led = self._led.get(key) or self._unsettled.get(key)
        if led is None:
            return
        led.note_committed()
        shown: LoggedRange | None = None
        while led.unpublished and prefix_of(led.unpublished[0]).seq <= led.committed_seq:
            shown = led.unpublished.popleft()
        if shown is not None:
            for link, copy in led.copies:
                copy.committed = (prefix_of(shown).seq, shown.next_offset)
                link.report_soon()
            self._show(shown)
        while led.waiting and led.waiting[0][0] <= led.committed_seq:
            led.waiting.popleft()[1].decide(key, _Fate.COMMITTED)

    def _end(self, led: _LedRange, logged: LoggedRange) -> None:
        """Stop leading a range, whose entries are decided."""
        del self._led[logged.key]
        for link, _ in led.copies:
            link.close(logged.key)
        self._close_unused(link for link, _ in led.copies)
        # Readers need not wait for other disks, because the end of the range is decided once. If
        # the only disk with its last entries is lost, nobody can settle the range any more, so no
        # reader is ever shown other records in their place.
        self._show(logged)
        end_seq = prefix_of(logged).seq if logged.state is RangeState.SEALED else 0
        waiting, led.waiting = led.waiting, deque()
        led.unpublished.clear()
        led.durable_seq = end_seq
        self._unsettled[logged.key] = led
        for seq, submission in waiting:
            if seq <= end_seq:
                led.waiting.append((seq, submission))
            else:
                submission.decide(logged.key, _Fate.TRUNCATED)
        self._advance(logged.key)
        if not led.waiting:
            del self._unsettled[logged.key]
            return
        task = asyncio.create_task(self._acknowledge_settled(led, logged.key, logged.next_offset))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _acknowledge_settled(self, led: _LedRange, key: RangeKey, end_offset: int) -> None:
        """Acknowledge waiting entries as other servers settle a range; give up after a timeout.

        If a member is down for good, the placement driver lets another server copy the range.
        """
        asking: dict[str, asyncio.Task[None]] = {}

        def ask(addresses: Iterable[str]) -> None:
            for address in addresses:
                if address not in asking:
                    work = self._ask_until_settled(led, key, end_offset, address)
                    asking[address] = asyncio.create_task(work)

        ask(link.address for link, _ in led.copies)
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_MS / 1000):
                while led.waiting:
                    await asyncio.sleep(_LIST_AGAIN_SECONDS)
                    with suppress(SbpError):
                        ask(await self._find_servers(key))
        except TimeoutError:
            _LOG.warning(
                "appends not acknowledged stream=%d range=%d count=%d: of the servers %s only %d"
                " settled the range, and %d are needed",
                *(*key, len(led.waiting), ", ".join(asking), len(led.settled), led.ack_count - 1),
            )
        finally:
            del self._unsettled[key]
            await cancel_all(asking.values())
        for _, submission in led.waiting:
            submission.decide(key, _Fate.UNSETTLED)

    async def _ask_until_settled(
        self, led: _LedRange, key: RangeKey, end_offset: int, address: str
    ) -> None:
        wait_ms = _ASK_AGAIN_MS
        while led.waiting:
            try:
                is_settled = await self._settled.is_settled_at(address, key, end_offset)
            except SbpError as error:  # it is down, or has not settled yet
                _LOG.debug("not settled address=%s stream=%d range=%d: %s", address, *key, error)
                is_settled = False
            if is_settled:
                led.settled.add(address)
                self._advance(key)
                return
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, _ASK_AGAIN_MS_MAX)

    def _close_unused(self, links: Iterable[PeerLink]) -> None:
        for link in links:
            if link.is_unused and self._links.pop(link.address, None) is not None:
                closing = asyncio.create_task(link.stop())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
