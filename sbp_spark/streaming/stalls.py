"""The range servers that are down, and how long a look at the streams waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client import Client, Reach, StreamInfo
from sbp_core.errors import SbpError, StatusError
from sbp_core.wording import listed
from sbp_spark.reporting import LOG

ANSWER_MS_MIN: Final = 1_000
"""The least timeout of a request, however short the stall that is allowed."""
PROBE_TIMEOUT_MS: Final = 1_000
PROBE_PAUSE_FACTOR: Final = 9
"""The pause between probes, as a multiple of the last probe: they cost a tenth of the time."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_NO_SERVER: Final = ""
"""Stands for the server of ranges that no server hosts."""


def answer_ms(stall_ms_max: int) -> int:
    """Return the timeout of requests to a server that may be down for `stall_ms_max`."""
    return min(limits.REQUEST_TIMEOUT_MS, max(stall_ms_max, ANSWER_MS_MIN))


@dataclass(slots=True)
class _Absence:
    """A server that is down; once given up, it is probed before it gets other requests."""

    since_s: float
    since_ms: int
    error: SbpError
    is_given_up: bool = False
    is_spared: bool = False
    probe_at_s: float = 0.0


class Stalls:
    """The range servers that are down, and since when.

    A look waits up to `stall_ms_max` for a server that went down. Then the server is given up until
    it answers.
    """

    def __init__(
        self,
        stall_ms_max: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stall_s_max = stall_ms_max / 1000
        self._timeout_ms = answer_ms(stall_ms_max)
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._absences: dict[str, _Absence] = {}

    def reach(
        self, client: Client, streams: Mapping[int, StreamInfo], known: Mapping[int, int]
    ) -> dict[int, Reach]:
        """Return how far the streams can be read; `known` has the next offset of some of them.

        Waits for servers that are not given up yet. Raises SbpError.
        """
        positions = {stream_id: known.get(stream_id) for stream_id in streams}
        self._probe(client)
        pause_s = _PAUSE_S
        while True:
            began_s, began_ms = self._clock(), int(self._wall() * 1000)
            spared = {each: at.error for each, at in self._absences.items() if at.is_spared}
            found = client.reach(positions, timeout_ms=self._timeout_ms, spared=spared)
            self._note(found.values(), began_s, began_ms)
            left_s = self._left_s()
            if left_s <= 0:
                break
            self._sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        self._give_up(found, streams)
        return found

    def since_ms(self, at: Reach) -> int:
        """Return since when a stream lacks a server, in ms (UTC)."""
        return min(self._absences[each.server or _NO_SERVER].since_ms for each in at.unavailable)

    def _probe(self, client: Client) -> None:
        """Probe the servers whose pause is over."""
        began_s = self._clock()
        due = [
            each for each, at in self._absences.items() if at.is_spared and at.probe_at_s <= began_s
        ]
        if not due:
            return
        errors = client.probe(due, timeout_ms=PROBE_TIMEOUT_MS)
        now_s = self._clock()
        for server in due:
            absence = self._absences[server]
            absence.is_spared = server in errors
            absence.error = errors.get(server, absence.error)
            absence.probe_at_s = now_s + PROBE_PAUSE_FACTOR * (now_s - began_s)

    def _note(self, found: Collection[Reach], began_s: float, began_ms: int) -> None:
        """Record which servers were down, and which answer again."""
        missed = {
            piece.server or _NO_SERVER: piece.error for each in found for piece in each.unavailable
        }
        for server, error in missed.items():
            if server not in self._absences:
                self._absences[server] = _Absence(began_s, began_ms, error)
                if self._stall_s_max > 0:
                    LOG.warning(
                        "%s is down error=%s; waiting for it, at most %g s",
                        _called(server),
                        error,
                        self._stall_s_max,
                    )
            self._absences[server].error = error
        for server in self._absences.keys() - missed.keys():
            absence = self._absences.pop(server)
            LOG.warning(
                "%s is back, or no longer needed, after %.0f s; its streams are read again",
                _called(server),
                self._clock() - absence.since_s,
            )

    def _left_s(self) -> float:
        """Return how long to wait for servers that are not given up."""
        ends = [
            at.since_s + self._stall_s_max for at in self._absences.values() if not at.is_given_up
        ]
        return max(ends, default=0.0) - self._clock() if ends else 0.0

    def _give_up(self, found: Mapping[int, Reach], streams: Mapping[int, StreamInfo]) -> None:
        """Log once for each server that is down for too long which streams wait for it."""
        for server, absence in self._absences.items():
            absence.is_spared = server != _NO_SERVER and not isinstance(absence.error, StatusError)
            if absence.is_given_up:
                continue
            absence.is_given_up = True
            names = [
                f"{streams[stream_id].label} ({stream_id})"
                for stream_id, at in found.items()
                if any((piece.server or _NO_SERVER) == server for piece in at.unavailable)
            ]
            LOG.warning(
                "%s is down for more than %g s error=%s stalled=%d: these streams wait for it,"
                " others are read: %s",
                _called(server),
                self._stall_s_max,
                absence.error,
                len(names),
                listed(names),
            )


def _called(server: str) -> str:
    return f"range server {server}" if server else "a range server"
