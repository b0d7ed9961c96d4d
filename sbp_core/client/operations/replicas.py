"""Which replica of a range is asked, and which servers failed a short time ago. Pure.

The open range of a stream is read and written at its primary. The replicas of a sealed range are
equal: a client asks a replica on its own machine first, and otherwise clients spread over the
replicas. An operation passes over a replica that fails. Read `Replicas.readers` and `Turn.after`
first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from sbp_core import limits
from sbp_core.client.types import RangeInfo
from sbp_core.errors import (
    DeadlineExceededError,
    OffsetOutOfRangeError,
    ProtocolError,
    RangeNotFoundError,
    RequestTimeoutError,
    SbpError,
    ShuttingDownError,
    StorageError,
    TransportError,
)
from sbp_core.wire.status import with_message

_LOG: Final = logging.getLogger("sbp_core.client")

_OF_SERVER: Final = (
    TransportError,
    DeadlineExceededError,
    RequestTimeoutError,
    ShuttingDownError,
)
"""Errors of a whole server: it fails for all of its ranges."""
_OF_REPLICA: Final = (RangeNotFoundError, StorageError, ProtocolError, OffsetOutOfRangeError)
"""Errors of one replica: it lacks entries of the range, or is damaged. Other replicas may serve."""

_OUTAGE_MS: Final = 12 * limits.REPLICA_PAUSE_MS
"""A server that fails again within this time is still down."""

_Key = tuple[str, int, int]
"""A server with stream id and range index; with -1 and -1 it stands for all ranges there."""


class Replicas:
    """The order in which the replicas of ranges are asked. Threads may share it.

    `salt` tells clients apart. `is_own` says whether the server at an endpoint is on this machine.
    Times are ms of a monotonic clock.
    """

    def __init__(self, salt: int = 0, is_own: Callable[[str], bool] = lambda _: False) -> None:
        self._salt = salt
        self._is_own = is_own
        self._failed_ms: dict[_Key, float] = {}
        self._seal_due_ms: dict[tuple[int, int], float] = {}
        self._suspects: dict[int, tuple[RangeInfo, SbpError]] = {}

    def readers(self, piece: RangeInfo, now_ms: float) -> list[str]:
        """Return the servers that a range can be read from, in the order in which to ask them.

        Servers that failed less than REPLICA_PAUSE_MS ago come last, the latest failure at the end.
        """
        if not piece.is_sealed_and_replicated:
            return list(piece.servers[:1])
        return sorted(piece.servers, key=lambda server: self._rank(piece, server, now_ms))

    def on_failure(self, piece: RangeInfo, server: str, error: SbpError, now_ms: float) -> None:
        """Let a server of a replicated range be asked last for a while. Log an outage once."""
        whole = isinstance(error, _OF_SERVER)
        key = (server, -1, -1) if whole else (server, piece.stream_id, piece.range_index)
        before_ms = self._failed_ms.get(key)
        self._failed_ms[key] = now_ms
        if before_ms is not None and now_ms < before_ms + _OUTAGE_MS:
            return
        _LOG.warning(
            "replica passed over: server=%s stream=%d range=%d pause_ms=%d cause=%s",
            server,
            piece.stream_id,
            piece.range_index,
            limits.REPLICA_PAUSE_MS,
            error,
        )
        for each, failed_ms in list(self._failed_ms.items()):
            if failed_ms + _OUTAGE_MS <= now_ms:
                self._failed_ms.pop(each, None)

    def suspect(self, piece: RangeInfo, error: SbpError) -> None:
        """Record that the primary of an open range may have failed, for the next append.

        The next append may belong to another operation, because this operation may be out of time.
        """
        self._suspects[piece.stream_id] = piece, error

    def take_suspects(self, stream_ids: Iterable[int]) -> list[tuple[RangeInfo, SbpError]]:
        """Return and forget the ranges of these streams whose primaries may have failed."""
        if not self._suspects:
            return []
        noted = (self._suspects.pop(each, None) for each in stream_ids)
        return [each for each in noted if each is not None]

    def may_ask_seal(self, piece: RangeInfo, now_ms: float, pause_ms: float) -> bool:
        """Whether the client may ask to seal a range: no operation asked a short time ago.

        If it may, the range counts as asked for the next `pause_ms`.
        """
        key = piece.stream_id, piece.range_index
        if self._seal_due_ms.get(key, now_ms) > now_ms:
            return False
        due = {each: due_ms for each, due_ms in self._seal_due_ms.items() if due_ms > now_ms}
        self._seal_due_ms = {**due, key: now_ms + pause_ms}
        return True

    def _rank(self, piece: RangeInfo, server: str, now_ms: float) -> tuple[float, bool, int]:
        of_range = server, piece.stream_id, piece.range_index
        failed_ms = max(self._recent_ms(each, now_ms) for each in ((server, -1, -1), of_range))
        spread = hash((self._salt, piece.stream_id, piece.range_index, crc32(server.encode())))
        return failed_ms, not self._is_own(server), spread

    def _recent_ms(self, key: _Key, now_ms: float) -> float:
        """Return when a server failed, -1 if the failure is older than REPLICA_PAUSE_MS."""
        failed_ms = self._failed_ms.get(key)
        is_recent = failed_ms is not None and now_ms < failed_ms + limits.REPLICA_PAUSE_MS
        return failed_ms if failed_ms is not None and is_recent else -1.0


@dataclass(slots=True)
class Turn:
    """The replicas of one range that failed in an operation since it last waited."""

    range_index: int = -1
    failed: dict[str, SbpError] = field(default_factory=dict)
    last: str = ""
    """The server that failed last. After a wait another server is asked before it."""

    def at(self, replicas: Replicas, piece: RangeInfo, now_ms: float) -> tuple[str, bool]:
        """Return the server to ask next, and whether another one is left if it fails.

        The range must have a server.
        """
        left = self._left(replicas, piece, now_ms)
        if not left:  # all servers of the range have failed, as its servers have changed
            self.failed = {}
            left = self._left(replicas, piece, now_ms)
        return left[0], len(left) > 1

    def after(
        self, replicas: Replicas, piece: RangeInfo, server: str, error: SbpError, now_ms: float
    ) -> tuple[str, SbpError] | None:
        """Record that `server` failed; return None if another replica is to be asked at once.

        Otherwise return the server and the error that stand for all failed replicas: an error that
        a retry may cure if there is one, with the other errors in its message.
        """
        is_passing = piece.is_sealed_and_replicated and isinstance(error, _OF_SERVER + _OF_REPLICA)
        if not is_passing:
            return server, error
        replicas.on_failure(piece, server, error, now_ms)
        self.failed[server], self.last = error, server
        if self._left(replicas, piece, now_ms):
            return None
        failed, self.failed = self.failed, {}
        return worst_failure(failed)

    def _left(self, replicas: Replicas, piece: RangeInfo, now_ms: float) -> list[str]:
        if piece.range_index != self.range_index:
            self.range_index, self.failed = piece.range_index, {}
        left = [each for each in replicas.readers(piece, now_ms) if each not in self.failed]
        return sorted(left, key=self.last.__eq__)


def worst_failure(failed: Mapping[str, SbpError]) -> tuple[str, SbpError]:
    """Return the server and the error that stand for all failed replicas.

    An OffsetOutOfRangeError counts only if all replicas agree, because a replica may be behind.
    """
    server, error = min(
        failed.items(),
        key=lambda each: (not each[1].retriable, isinstance(each[1], OffsetOutOfRangeError)),
    )
    others = [f"{each}: {failed[each]}" for each in failed if each != server]
    if others:
        error = with_message(error, "", f" (its other replicas failed too: {'; '.join(others)})")
    return server, error
