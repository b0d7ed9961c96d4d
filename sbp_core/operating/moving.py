"""Moves of ranges to other servers, while the cluster serves (SPEC "MOVE_RANGES").

The placement driver goes one step with each request, so a move is asked for until it is done. If
the client stops, or the placement driver fails over, the same request continues the move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.client import Client
from sbp_core.client.operations.range_placement import chunks, range_info
from sbp_core.errors import NotFoundError, RangeNotFoundError, SbpError
from sbp_core.operating.balancing import Move, Placed, Server
from sbp_core.wire.headers import (
    ListRangesRequest,
    ListRangesResponse,
    MoveRangesRequest,
    MoveRangesResponse,
    RangeCriteria,
    RangeMove,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_BATCH_MAX: Final = 16
_BATCH_BYTES: Final = 16 * limits.MIB
"""Ranges that are moved at a time, and the bytes of their copies after which no other begins."""
_REST_SECONDS_MAX: Final = 5.0
"""The longest pause between two batches. Each is three times as long as the batch before took."""
_POLL_SECONDS: Final = 0.1
_POLL_SECONDS_MAX: Final = 2.0
"""The longest pause between requests. Pauses double while no move ends: the audit log has each
request."""
_PATIENCE_SECONDS: Final = 30.0
"""How long a move with a retriable error is tried again."""


def read_servers(client: Client) -> list[Server]:
    """Return the range servers that are not retired."""
    return [
        Server(each.server_id, each.rack or "", each.is_live and not each.is_draining, free_bytes)
        for each in client.range_servers()
        if not each.is_retired
        for free_bytes in [each.disk_free_bytes]
    ]


def read_ranges(client: Client, stream_ids: Sequence[int] | None = None) -> list[Placed]:
    """Return the ranges of streams, or of all streams if None, without deleted streams.

    A range whose servers do not report its size counts as empty.
    """
    streams = client.list_streams() if stream_ids is None else client.find_streams(stream_ids)
    replica_counts = {each.stream_id: each.replica_count for each in streams}
    found: list[StreamRange] = []
    for chunk in chunks([*replica_counts]):
        owners = tuple(RangeCriteria(stream_id=each) for each in chunk)
        request = ListRangesRequest(limits.REQUEST_TIMEOUT_MS, owners)
        for answer in client.ask(Opcode.LIST_RANGES, request, ListRangesResponse):
            found += (each for result in answer.list_responses for each in result.ranges)
    pieces = list(map(range_info, found))
    sizes = client.range_bytes(pieces, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    return [
        Placed(
            each.stream_id,
            each.range_index,
            _server_ids(each),
            replica_counts[each.stream_id],
            each.end_offset < 0,
            sizes.get((each.stream_id, each.range_index), 0),
        )
        for each in found
        if each.servers and each.stream_id in replica_counts
    ]


def _server_ids(found: StreamRange) -> tuple[int, ...]:
    members = sorted(found.servers, key=lambda each: not each.is_primary)
    return tuple(each.server.server_id for each in members if each.server is not None)


OnMoved = Callable[[int, int], None]
"""Gets the number of moves that have ended, and the bytes of their copies."""


def run_moves(
    client: Client,
    moves: Sequence[Move],
    *,
    bytes_per_second: float,
    on_moved: OnMoved = lambda _moves, _bytes: None,
) -> dict[int, SbpError]:
    """Move ranges; return the error of each stream, by id, with ranges that were not moved.

    The moves of a stream run one after the other. `bytes_per_second` bounds the average rate of
    copies. Ranges that were deleted or trimmed count as moved. Raises SbpError if the placement
    driver does not answer.
    """
    run = _Run(client, [*moves])
    while run.waiting:
        began = time.monotonic()
        run.begin_batch()
        pause = _POLL_SECONDS
        while run.in_flight:
            run.step()
            on_moved(run.ended_count, run.ended_bytes)
            if run.in_flight:
                time.sleep(pause)
                pause = min(2 * pause, _POLL_SECONDS_MAX)
        took = time.monotonic() - began
        behind = run.ended_bytes / bytes_per_second - (time.monotonic() - run.began)
        # The servers get most of the time for other work: a copy takes processor time of two.
        time.sleep(max(behind, min(3 * took, _REST_SECONDS_MAX)) if run.waiting else 0)
    return run.errors


@dataclass(slots=True)
class _Run:
    client: Client
    waiting: list[Move]
    in_flight: dict[int, Move] = field(default_factory=dict)
    """By stream."""
    errors: dict[int, SbpError] = field(default_factory=dict)
    ended_count: int = 0
    ended_bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    failing_since: dict[int, float] = field(default_factory=dict)

    def begin_batch(self) -> None:
        """Start the next moves, one of each stream, and none of a stream with a failed move."""
        kept: list[Move] = []
        room = _BATCH_BYTES
        for each in self.waiting:
            if each.stream_id in self.errors:
                self._end(each)
                continue
            is_full = room <= 0 or len(self.in_flight) == _BATCH_MAX
            if is_full or each.stream_id in self.in_flight:
                kept.append(each)
            else:
                self.in_flight[each.stream_id] = each
                room -= each.copied_bytes
        self.waiting = kept

    def step(self) -> None:
        """Ask for all moves in flight, and record the moves that have ended."""
        tables = [RangeMove(*each[:3]) for each in self.in_flight.values()]
        request = MoveRangesRequest(limits.REQUEST_TIMEOUT_MS, tuple(tables))
        answers = self.client.ask(Opcode.MOVE_RANGES, request, MoveRangesResponse)
        for result in (each for answer in answers for each in answer.move_responses):
            move = self.in_flight.get(result.stream_id)
            error = maybe_error(result.status)
            if move is None:
                continue
            is_gone = isinstance(error, NotFoundError | RangeNotFoundError)
            if error is None:
                self.failing_since.pop(move.stream_id, None)
            elif not is_gone:
                if self._may_pass(move, error):
                    continue
                self.errors[move.stream_id] = error
            if result.is_done or error is not None:
                del self.in_flight[move.stream_id]
                self._end(move)

    def _may_pass(self, move: Move, error: SbpError) -> bool:
        since = self.failing_since.setdefault(move.stream_id, time.monotonic())
        return error.retriable and time.monotonic() < since + _PATIENCE_SECONDS

    def _end(self, move: Move) -> None:
        self.ended_count += 1
        self.ended_bytes += move.copied_bytes
