"""Whether primaries serve their ranges, and how often a stream may go on in a new range.

A server that is not heard, or that a client does not reach, may be alive. So it is asked before
its ranges end (SPEC "SEAL_RANGE"): a range that is open there, and led by it, goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from sbp_core.errors import DeadlineExceededError, TransportError
from sbp_core.pd.range_servers import Membership
from sbp_core.peers.range_servers import Peers
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import DescribeRangeResult, StreamRange

_UNREACHABLE: Final = (TransportError, DeadlineExceededError)
SEAL_BACKOFF_MS: Final = 1_000
SEAL_BACKOFF_MS_MAX: Final = 60_000
"""The first and the longest pause between ranges of a stream that end for want of a replica."""
_LOOKS: Final = 3
"""Intervals of heartbeats in which a server that sends these has to answer."""


class Primaries:
    """Asks the primaries of ranges whether they serve these."""

    def __init__(self, membership: Membership, peers: Peers, clock: Clock) -> None:
        self._membership = membership
        self._peers = peers
        self._clock = clock

    async def sound(self, ranges: Iterable[StreamRange]) -> set[int]:
        """Return the streams whose open range is served by its primary."""
        by_primary: dict[tuple[int, str], list[StreamRange]] = {}
        for each in ranges:
            first = each.servers[0].server
            if first is not None and first.advertise_addr:
                primary = first.server_id, first.advertise_addr
                by_primary.setdefault(primary, []).append(each)
        asked = (self._ask(*primary, led) for primary, led in by_primary.items())
        return {stream_id for part in await asyncio.gather(*asked) for stream_id in part}

    async def _ask(self, server_id: int, address: str, led: Sequence[StreamRange]) -> set[int]:
        """Return the streams of which a server says that it leads the range.

        It has the time between two heartbeats for that, or three times as long if one comes. One
        that does not answer gets no new ranges.
        """
        began = self._clock.monotonic()
        call = asyncio.create_task(self._peers.describe_at(address, led))
        try:
            for _ in range(_LOOKS):
                await asyncio.wait({call}, timeout=self._membership.interval_ms / 1000)
                if call.done() or not self._membership.has_heard_since(server_id, began):
                    break
            answers = call.result() if call.done() else {}
        finally:
            await cancel_all([call])
        if any(not isinstance(each, _UNREACHABLE) for each in answers.values()):
            self._membership.note_answer(server_id)
        else:
            self._membership.suspect([server_id])
        return {
            stream_id
            for stream_id, answer in answers.items()
            if isinstance(answer, DescribeRangeResult)
            and answer.stream_range is not None
            and answer.stream_range.end_offset < 0
        }


class SealBackoff:
    """How long streams wait before they leave a range again whose primary serves it.

    A server that is half dead may be named as the reason for ever.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[int, tuple[float, float]] = {}
        """By stream: when it went on in a new range last, and the pause in ms from then on."""

    def maybe_wait_ms(self, stream_id: int) -> int | None:
        """Return how long a stream has to wait, None if it may go on now, which is noted."""
        now = self._clock.monotonic()
        went_on_at, pause_ms = self._last.get(stream_id, (now, 0.0))
        elapsed_ms = 1000 * (now - went_on_at)
        if elapsed_ms < pause_ms:
            return round(pause_ms - elapsed_ms)
        is_over = elapsed_ms >= 2 * SEAL_BACKOFF_MS_MAX
        self._last = {
            each: last
            for each, last in self._last.items()
            if 1000 * (now - last[0]) < 2 * SEAL_BACKOFF_MS_MAX
        }
        next_ms = SEAL_BACKOFF_MS if is_over or not pause_ms else 2 * pause_ms
        self._last[stream_id] = now, min(next_ms, SEAL_BACKOFF_MS_MAX)
        return None
