"""The link of a primary to a secondary: it sends the entries of ranges, in order, pipelined.

For each range with a copy at the server the link has a window: the entries that are not known to be
durable there. A frame has the next entries of all ranges. Several frames are in flight over one
connection, so they arrive in order.

A copy begins with a question: which entries are durable there? The question is repeated after a
lost connection, and after a refusal because other entries come next. If the answer is in the window
by number and digest, the entries behind it are sent. Otherwise the copy is lost: the secondary has
other entries, or lost some, or was so slow that the window was given up. The range then ends, and
goes on with other servers (primary.py).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.client.io.aio_transport import AsyncPool
from sbp_core.client.operations import calls
from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import (
    RangeNotFoundError,
    RangeSealedError,
    SbpError,
    ThrottledError,
    WriterGapError,
)
from sbp_core.log.states.range_states import RangeKey
from sbp_core.replication import Prefix
from sbp_core.server.runtime import cancel_all
from sbp_core.session.negotiation import FeatureName
from sbp_core.tls import Tls
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import (
    ReplicatedRange,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error

_LOG: Final = logging.getLogger(__name__)
_CONNECT_TIMEOUT_MS: Final = 1_000
_BACKOFF_MS: Final = 20
_BACKOFF_MS_MAX: Final = 500
"""The first and the longest backoff after a failure."""
_COMMITTED_REPORT_MS: Final = 5
"""Wait for further entries before a frame that only reports the committed offset."""


class Numbered(NamedTuple):
    """An entry to send: the prefix that ends with it, and its portable bytes.

    `is_begun`: the entry is a writer's mark, and its batch must be in the same frame.
    """

    end: Prefix
    parts: list[Buffer]
    length: int
    is_begun: bool = False


class CopyState(enum.Enum):
    """States of a copy, as its primary sees it."""

    ASKING = "it is unknown which entries are durable there"
    STREAMING = "entries are sent as they come"
    LOST = "it cannot go on"


class Copy:
    """The copy of a range at another server."""

    def __init__(self, key: RangeKey, start_offset: int, on_durable: Callable[[], None]) -> None:
        self.key = key
        self.state = CopyState.ASKING
        self.acked = Prefix()
        """The durable entries of the copy."""
        self.window: deque[Numbered] = deque()
        self.window_bytes = 0
        self.sent_count = 0
        """Number of entries in the window that are in flight."""
        self.committed = (0, start_offset)
        """The last committed entry, and the offset after the last committed record."""
        self.reported_offset = start_offset
        """The committed offset that was sent to the server."""
        self.behind_since: float | None = None
        """Time since when the copy lacks entries without progress; None if it lacks none."""
        self._on_durable = on_durable

    def add(self, entry: Numbered, now: float) -> None:
        """Add the next entry."""
        if self.state is CopyState.LOST:
            return
        if self.behind_since is None:
            self.behind_since = now
        self.window.append(entry)
        self.window_bytes += entry.length

    @property
    def unsent_count(self) -> int:
        """Number of entries that are not in flight yet."""
        return len(self.window) - self.sent_count

    @property
    def is_report_due(self) -> bool:
        """Whether a frame must report the committed offset, because no entry brings it.

        While entries are in flight more are likely to follow, and each frame brings the offset.
        """
        is_known = self.reported_offset >= self.committed[1]
        return self.state is CopyState.STREAMING and not self.window and not is_known

    def take(self, bytes_max: int) -> tuple[Prefix, list[Buffer], int]:
        """Return the next entries to send, at least one: prefix before them, buffers, length."""
        before = self.window[self.sent_count - 1].end if self.sent_count else self.acked
        parts: list[Buffer] = []
        length = 0
        is_begun = False
        while self.unsent_count:
            entry = self.window[self.sent_count]
            if parts and length + entry.length > bytes_max and not is_begun:
                break
            parts += entry.parts
            length += entry.length
            is_begun = entry.is_begun
            self.sent_count += 1
        return before, parts, length

    def note_durable(self, durable: Prefix, now: float) -> None:
        """Note the durable entries. The copy is lost if they are not a prefix of the range."""
        if durable.seq <= self.acked.seq or self.state is CopyState.LOST:
            return
        count = durable.seq - self.acked.seq
        if count > len(self.window) or self.window[count - 1].end != durable:
            self.lose(f"its first {durable.seq} entries differ from the primary's", now)
            return
        for _ in range(count):
            self.window_bytes -= self.window.popleft().length
        self.sent_count = max(0, self.sent_count - count)
        self.acked = durable
        self.behind_since = now if self.window else None
        self._on_durable()

    def ask(self) -> None:
        """Ask for the durable entries; the entries behind them are sent again."""
        if self.state is not CopyState.LOST:
            self.state = CopyState.ASKING
            self.sent_count = 0

    def resume(self, durable: Prefix, now: float) -> None:
        """Stream the entries behind the durable ones, after the answer to a question."""
        if durable.seq < self.acked.seq:
            self.lose(f"it has {durable.seq} entries, and had {self.acked.seq}", now)
        self.note_durable(durable, now)
        if self.state is CopyState.ASKING:
            self.state = CopyState.STREAMING
            self.sent_count = 0

    def lose(self, reason: str, now: float, level: int = logging.WARNING) -> None:
        """Give the copy up."""
        if self.state is CopyState.LOST:
            return
        _LOG.log(level, "copy lost stream=%d range=%d: %s", *self.key, reason)
        self.state = CopyState.LOST
        self.behind_since = now if self.behind_since is None else self.behind_since
        self.window.clear()
        self.window_bytes = self.sent_count = 0


class PeerLink:
    """Sends the entries of all ranges with a copy at the server `address`."""

    def __init__(self, address: str, server_id: Callable[[], int], tls: Tls | None) -> None:
        self.address = address
        self.is_down = False
        """Whether the last attempt failed."""
        self._server_id = server_id
        self._loop = asyncio.get_running_loop()
        self._copies: dict[RangeKey, Copy] = {}
        self._dirty: dict[RangeKey, Copy] = {}
        """Copies with unsent entries."""
        self._asking: dict[RangeKey, Copy] = {}
        self._window_bytes_max = 0
        """An upper bound of the bytes in all windows: acknowledged bytes are subtracted later."""
        self._is_report_due = False
        self._pool = AsyncPool(Connecting(timeout_ms=_CONNECT_TIMEOUT_MS, tls=tls))
        self._frames_in_flight = 0
        self._backoff_ms = 0
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_unused(self) -> bool:
        """Whether no range has a copy there."""
        return not self._copies

    def open(self, copy: Copy) -> None:
        """Begin to send a range."""
        self._copies[copy.key] = copy
        self._asking[copy.key] = copy
        self._wake()

    def close(self, key: RangeKey) -> None:
        """Send nothing more of a range."""
        for copies in (self._copies, self._dirty, self._asking):
            copies.pop(key, None)

    def add(self, copy: Copy, entry: Numbered) -> None:
        """Add the next entry of a range; `flush` sends it."""
        copy.add(entry, self._loop.time())
        if copy.state is CopyState.STREAMING:
            self._dirty[copy.key] = copy
        self._window_bytes_max += entry.length
        if self._window_bytes_max <= limits.REPLICA_WINDOW_BYTES:
            return
        self._window_bytes_max = sum(each.window_bytes for each in self._copies.values())
        if self._window_bytes_max > limits.REPLICA_WINDOW_BYTES:
            # The secondary is too slow for all ranges. Give up one range, the largest window.
            largest = max(self._copies.values(), key=lambda each: each.window_bytes)
            largest.lose(
                f"more than {limits.REPLICA_WINDOW_BYTES} bytes are not durable at {self.address}",
                self._loop.time(),
            )

    def flush(self) -> None:
        """Send the entries that were added."""
        if self._dirty:
            self._wake()

    def report_soon(self) -> None:
        """Report the committed offset with the next entries, or alone after a short wait."""
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_later(_COMMITTED_REPORT_MS / 1000, self._report)

    async def stop(self) -> None:
        """Close the connection."""
        if self._retry is not None:
            self._retry.cancel()
        await cancel_all(self._tasks)
        await self._pool.close()

    def _report(self) -> None:
        self._is_report_due = False
        copies = [copy for copy in self._copies.values() if copy.is_report_due]
        if copies and not self.is_down:
            self._start(self._send([(copy, copy.acked, 0) for copy in copies], []))

    def _wake(self) -> None:
        """Start as many calls as may be in flight: questions first, then entries."""
        if self._retry is not None:
            return
        if self._asking:
            asked, self._asking = list(self._asking.values()), {}
            self._start(self._ask(asked))
        while (
            self._dirty
            and self._frames_in_flight < limits.REPLICATE_FRAMES_IN_FLIGHT
            and not self.is_down
        ):
            ranges: list[tuple[Copy, Prefix, int]] = []
            payload: list[Buffer] = []
            room = limits.REPLICATE_FRAME_BYTES
            for key, copy in list(self._dirty.items()):
                if copy.state is CopyState.STREAMING and copy.unsent_count:
                    before, parts, length = copy.take(room)
                    ranges.append((copy, before, length))
                    payload += parts
                    room -= length
                if copy.state is not CopyState.STREAMING or not copy.unsent_count:
                    del self._dirty[key]
                if room <= 0:
                    break
            if ranges:
                self._frames_in_flight += 1
                self._start(self._send_counted(ranges, payload))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_counted(
        self, ranges: Iterable[tuple[Copy, Prefix, int]], payload: list[Buffer]
    ) -> None:
        try:
            await self._send(ranges, payload)
        finally:
            self._frames_in_flight -= 1
        self._wake()

    async def _send(
        self, ranges: Iterable[tuple[Copy, Prefix, int]], payload: list[Buffer]
    ) -> None:
        """Send entries, or only committed offsets, and note the durable entries."""
        try:
            results = await self._replicate(ranges, payload)
        except SbpError as error:
            self._on_failure(error)
            return
        for copy, durable in self._accepted(results):
            copy.note_durable(durable, self._loop.time())
            if copy.is_report_due:
                self.report_soon()

    async def _ask(self, copies: list[Copy]) -> None:
        """Ask for the durable entries of copies, and stream the entries behind them."""
        for copy in copies:
            copy.ask()
        try:
            results = await self._replicate([(copy, copy.acked, 0) for copy in copies], [])
        except SbpError as error:
            self._on_failure(error)
            return
        self.is_down, self._backoff_ms = False, 0
        for copy, durable in self._accepted(results):
            copy.resume(durable, self._loop.time())
            if copy.unsent_count:
                self._dirty[copy.key] = copy
            elif copy.is_report_due:
                self.report_soon()
        self._wake()

    def _accepted(
        self, results: Iterable[tuple[Copy, ReplicateResult]]
    ) -> Iterator[tuple[Copy, Prefix]]:
        """Yield what is durable of each copy that accepted its part, and deal with refusals."""
        for copy, result in results:
            refusal = maybe_error(result.status)
            if refusal is not None:
                self._on_refusal(copy, refusal)
            else:
                yield copy, Prefix(result.seq, bytes(result.digest))

    async def _replicate(
        self, ranges: Iterable[tuple[Copy, Prefix, int]], payload: list[Buffer]
    ) -> list[tuple[Copy, ReplicateResult]]:
        sent = {copy.key: copy for copy, _, _ in ranges}
        tables = []
        for copy, before, length in ranges:
            seq, offset = copy.committed
            copy.reported_offset = offset
            tables.append(
                ReplicatedRange(*copy.key, before.seq, before.digest, length, seq, offset)
            )
        timeout_ms = limits.REPLICATE_TIMEOUT_MS
        call = Call(
            self.address,
            Opcode.REPLICATE,
            ReplicateRequest(timeout_ms, self._server_id(), tuple(tables)),
            timeout_ms,
            tuple(payload),
            feature=FeatureName.REPLICATION,
        )
        frames = await calls.exchange(self._pool.open_calls, call)
        results: list[tuple[Copy, ReplicateResult]] = []
        for frame in frames:
            response = decode_header(ReplicateResponse, frame.header)
            check_status(response.status)
            for result in response.replicate_responses:
                key = (result.stream_id, result.range_index)
                if key in sent:
                    results.append((sent.pop(key), result))
        return results

    def _on_refusal(self, copy: Copy, error: SbpError) -> None:
        if copy.key not in self._copies:
            return
        if isinstance(error, WriterGapError | RangeNotFoundError | ThrottledError):
            copy.ask()
            self._asking[copy.key] = copy
            self._retry_later()
        else:
            is_planned = isinstance(error, RangeSealedError)  # the range is fenced there already
            level = logging.INFO if is_planned else logging.WARNING
            copy.lose(f"{self.address} refuses its entries: {error}", self._loop.time(), level)

    def _on_failure(self, error: SbpError) -> None:
        """Ask all copies again after a backoff, because the server does not answer."""
        if not self.is_down:
            _LOG.warning("secondary does not answer address=%s: %s", self.address, error)
        self.is_down = True
        for copy in self._copies.values():
            copy.ask()
            self._asking[copy.key] = copy
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry is None:
            self._backoff_ms = min(
                _BACKOFF_MS_MAX,
                2 * self._backoff_ms or _BACKOFF_MS,
            )
            self._retry = self._loop.call_later(self._backoff_ms / 1000, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._wake()
