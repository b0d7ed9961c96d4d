"""What servers are told of a query's progress: the cursors of its group, and what may be trimmed.

A query never fails by that, and hardly waits for it: the next micro-batch tells more anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Thread
from time import monotonic
from typing import Final

from sbp_core.client import Client, StreamBounds
from sbp_core.errors import SbpError
from sbp_spark.offsets import SourceOffset, find_gone
from sbp_spark.options import CommitOptions
from sbp_spark.stream_watch import Snapshot

WAIT_S: Final = 1.0
"""How long a micro-batch waits for servers that are slow, at most; not at all after a failure."""
PAUSE_S: Final = 5.0
"""How long nothing is told after a failure."""
_LOG: Final = logging.getLogger("sbp_spark")


class Commits:
    """Tells servers how far one run of a query has come.

    It does so on a thread of its own, one attempt at a time. A failure is logged once, until an
    attempt has succeeded again. Everything that was not told yet goes with the next attempt.
    """

    def __init__(self, client: Client, options: CommitOptions) -> None:
        self._client = client
        self._options = options
        self._cursors: Mapping[int, int] = {}
        self._trims: Mapping[int, int] = {}
        self._told_cursors: dict[int, int] = {}
        self._told_trims: dict[int, int] = {}
        self._thread: Thread | None = None
        self._is_failing = False
        self._pause_until_s = 0.0

    def on_processed(self, at: SourceOffset) -> None:
        """Take note that micro-batches up to `at` are done: Spark asks for the next one."""
        if self._options.maybe_group is not None:
            self._cursors = {each: position.next_offset for each, position in at.streams.items()}
        self._attempt()

    def on_commit(self, at: SourceOffset, snapshot: Snapshot) -> None:
        """Take note that nothing before `at` will be read again: Spark has logged what follows.

        Only that is trimmed, in streams that are those which were read and have not lost records.
        """
        if not self._options.is_trimming:
            return
        created = {each: info.created_at_ms for each, info in snapshot.streams.items()}
        gone = {each.stream_id for each in find_gone(at.streams.values(), created)}
        self._trims = {
            stream_id: position.next_offset
            for stream_id, position in at.streams.items()
            if stream_id not in gone
            and _holds(snapshot.bounds.get(stream_id), position.next_offset)
        }
        self._attempt()

    def _attempt(self) -> None:
        """Tell what is not known yet, unless the last attempt is under way or has just failed."""
        if self._thread is not None and self._thread.is_alive():
            return
        if monotonic() < self._pause_until_s:
            return
        cursors = _difference(self._cursors, self._told_cursors)
        trims = _difference(self._trims, self._told_trims)
        if cursors or trims:
            self._thread = Thread(target=self._tell, args=(cursors, trims), daemon=True)
            self._thread.start()
            self._thread.join(0 if self._is_failing else WAIT_S)

    def _tell(self, cursors: Mapping[int, int], trims: Mapping[int, int]) -> None:
        """Set the cursors, and trim only then: no cursor may lie before the first record."""
        try:
            if cursors:
                assert self._options.maybe_group is not None
                self._client.commit_cursors(self._options.maybe_group, cursors)
                self._told_cursors |= cursors
            if trims:
                self._client.trim_streams(trims)
                self._told_trims |= trims
        except SbpError as error:
            if not self._is_failing:
                _LOG.warning("%s; the query goes on, and tries it again", self._explain(error))
            self._is_failing = True
            self._pause_until_s = monotonic() + PAUSE_S
            return
        if self._is_failing:
            _LOG.warning("what the query has read is committed again")
        self._is_failing = False

    def _explain(self, error: SbpError) -> str:
        group = self._options.maybe_group
        what = [f"set the cursors of group {group}"] if group is not None else []
        what += ["trim what was read"] if self._options.is_trimming else []
        return f"cannot {' and '.join(what)}: {error}"


def _holds(bounds: StreamBounds | None, offset: int) -> bool:
    """Whether there are records before an offset, and none before it is still to be written."""
    return bounds is not None and bounds.start_offset < offset <= bounds.next_offset


def _difference(wanted: Mapping[int, int], told: Mapping[int, int]) -> dict[int, int]:
    return {each: offset for each, offset in wanted.items() if told.get(each) != offset}
