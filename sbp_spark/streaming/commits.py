"""Committing a query's progress to servers: the cursors of its group, and trims.

A query never fails because of that, and hardly waits for it: the next micro-batch commits more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from time import monotonic
from typing import Final

from sbp_core.client import Client
from sbp_core.errors import SbpError
from sbp_spark.options.source import CommitOptions
from sbp_spark.reading.offsets import SourceOffset, find_gone
from sbp_spark.reporting import LOG
from sbp_spark.streaming.stream_watch import Snapshot

WAIT_S: Final = 1.0
"""How long a micro-batch waits for an attempt, at most; not at all after a failure."""
PAUSE_S: Final = 5.0
"""How long there is no attempt after a failure."""


class Commits:
    """Commits the progress of one run of a query.

    Cursors and trims have a sender each, so that a trim that has to wait delays no cursor.
    """

    def __init__(
        self,
        client: Client,
        options: CommitOptions,
        *,
        wait_s: float = WAIT_S,
        pause_s: float = PAUSE_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        sender = partial(_ProgressSender, wait_s=wait_s, pause_s=pause_s, clock=clock)
        self._is_trimming = options.is_trimming
        self._trims: Mapping[int, int] = {}
        self._trimming = sender("trim what was read", client.trim_streams)
        self._cursors: _ProgressSender | None = None
        group = options.group
        if group is not None:
            self._cursors = sender(
                f"set the cursors of group {group}",
                lambda news: client.commit_cursors(group, news),
            )

    def on_processed(self, at: SourceOffset) -> None:
        """Commit up to `at`: these micro-batches are done, as Spark asks for the next one."""
        if self._cursors is not None:
            self._cursors.send(at.next_offsets())
        self._trim()

    def on_commit(self, at: SourceOffset, snapshot: Snapshot) -> None:
        """Trim before `at`: Spark has logged the next batch, so nothing before is read again.

        Streams that were created again, have lost records or lack a server are left out.
        """
        if not self._is_trimming:
            return
        gone = {each.stream_id for each in find_gone(at.streams.values(), snapshot.streams)}
        self._trims = {
            stream_id: position.next_offset
            for stream_id, position in at.streams.items()
            if stream_id not in gone
            and stream_id not in snapshot.stalled
            and (bound := snapshot.bounds.get(stream_id)) is not None
            and bound.start_offset < position.next_offset <= bound.next_offset
        }
        self._trim()

    def _trim(self) -> None:
        """Trim up to the cursors that are set: none may lie before the first record."""
        trims = self._trims
        if self._cursors is not None:
            cursors = self._cursors.sent
            trims = {each: upto for each, upto in trims.items() if upto <= cursors.get(each, -1)}
        self._trimming.send(trims)


class _ProgressSender:
    """Sends one kind of offset to servers, on a thread of its own, one attempt at a time.

    A failure is logged once, until an attempt has succeeded again. The next attempt has everything
    that was not sent.
    """

    def __init__(
        self,
        what: str,
        call: Callable[[dict[int, int]], object],
        *,
        wait_s: float,
        pause_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.sent: dict[int, int] = {}
        """The offset that the servers have of each stream, by id."""
        self._what = what
        self._call = call
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._clock = clock
        self._thread: Thread | None = None
        self._is_failing = False
        self._pause_until_s = 0.0

    def send(self, wanted: Mapping[int, int]) -> None:
        """Send what is not sent yet, unless the last attempt is under way or has just failed."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._clock() < self._pause_until_s:
            return
        news = {each: upto for each, upto in wanted.items() if self.sent.get(each) != upto}
        if news:
            self._thread = Thread(target=self._attempt, args=(news,), daemon=True)
            self._thread.start()
            self._thread.join(0 if self._is_failing else self._wait_s)

    def _attempt(self, news: dict[int, int]) -> None:
        try:
            self._call(news)
        except Exception as error:  # noqa: BLE001 - no error of it may end the query
            if not self._is_failing:
                fault = None if isinstance(error, SbpError) else error
                LOG.warning(
                    "cannot %s error=%s: retried with the next micro-batch, the query continues",
                    self._what,
                    error,
                    exc_info=fault,
                )
            self._is_failing = True
            self._pause_until_s = self._clock() + self._pause_s
            return
        self.sent |= news
        if self._is_failing:
            LOG.warning("recovered: can %s again", self._what)
        self._is_failing = False
