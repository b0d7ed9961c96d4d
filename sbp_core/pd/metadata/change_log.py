"""Which streams changed in the latest revisions, so that clients look up only those.

The log is in memory. A placement driver knows the changes that it made itself since it leads, and
says so of all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHANGES_KEPT: Final = 100_000
"""Streams whose last change is kept: 10 MB at most."""
CHANGES_LISTED_MAX: Final = 1_000
"""Streams in one answer: a client with more looks everything up."""


class ChangeLog:
    """The last change of each stream, the latest last.

    The caller reports each revision after it was written. A revision that was rolled back, or that
    another placement driver wrote, leaves a gap, and the log begins again behind the gap.
    """

    def __init__(self, *, kept_max: int = CHANGES_KEPT) -> None:
        self._kept_max = kept_max
        self._changed_at: dict[int, int] = {}
        self._first = self._last = -1
        """The changes after the first of these revisions, up to the last, are known."""

    def note(self, revision: int, stream_ids: Iterable[int] | None) -> None:
        """Add a revision and the streams that it changed. None: any stream may have changed."""
        if revision != self._last + 1 or stream_ids is None:
            self._changed_at.clear()
            self._first = revision if stream_ids is None else revision - 1
        for stream_id in stream_ids or ():
            self._changed_at.pop(stream_id, None)
            self._changed_at[stream_id] = revision
        while len(self._changed_at) > self._kept_max:
            self._first = self._changed_at.pop(next(iter(self._changed_at)))
        self._last = revision

    def maybe_since(self, revision: int, now: int) -> list[int] | None:
        """Return the streams that changed after a revision, up to the one of now, the latest first.

        None if the log has a gap there, or if more than CHANGES_LISTED_MAX changed.
        """
        if revision == now:
            return []
        if not self._first <= revision or now != self._last:
            return None
        found = []
        for stream_id, changed_at in reversed(self._changed_at.items()):
            if changed_at <= revision:
                break
            found.append(stream_id)
            if len(found) > CHANGES_LISTED_MAX:
                return None
        return found
