"""The streams that a member may get: it subscribes to them, and has the right to read them.

Patterns have the form of grants (sbp_core/access/rights.py), without regular expressions. Names are
kept sorted, so a pattern is looked up by bisection: patterns and streams cost their sum, not their
product, whatever a client subscribes to.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import Final

from sbp_core import limits
from sbp_core.access.rights import Right
from sbp_core.group_limits import GROUP_STREAMS_MAX
from sbp_core.pd.groups.assigning import Eligible
from sbp_core.pd.groups.group import Member
from sbp_core.pd.metadata.store import MetadataStore

_LOG: Final = logging.getLogger(__name__)
_ANY: Final = "*"
_LAST: Final = chr(sys.maxunicode)
"""Follows every character of a name."""


class StreamNames:
    """Streams in the order of their names. None is the name of a stream without one."""

    def __init__(self, names: Iterable[tuple[int, str | None]] = ()) -> None:
        self._by_id = dict(names)
        found = sorted((name, key) for key, name in self._by_id.items() if name is not None)
        self._names = [name for name, _ in found]
        self._ids = [key for _, key in found]

    def put(self, stream_id: int, name: str | None) -> None:
        """Add a stream, or change its name."""
        self.discard(stream_id)
        self._by_id[stream_id] = name
        if name is not None:
            at = bisect_left(self._names, name)
            self._names.insert(at, name)
            self._ids.insert(at, stream_id)

    def discard(self, stream_id: int) -> None:
        """Remove a stream, if it is there."""
        name = self._by_id.pop(stream_id, None)
        if name is not None:
            at = self._ids.index(stream_id, bisect_left(self._names, name))
            del self._names[at], self._ids[at]

    def only(self, stream_ids: Iterable[int]) -> StreamNames:
        """Return some of these streams."""
        return StreamNames((each, self._by_id[each]) for each in stream_ids)

    def matching(self, patterns: Iterable[str]) -> set[int]:
        """Return the streams that match one pattern or more, in O(patterns * log + matches)."""
        if not self._by_id:
            return set()
        patterns = set(patterns)
        if _ANY in patterns:
            return set(self._by_id)
        found: set[int] = set()
        end = 0
        # Sorted, so what an earlier prefix matched is passed over and no name is looked at twice.
        for each in sorted(patterns, key=lambda pattern: pattern.removesuffix(_ANY)):
            text = each.removesuffix(_ANY)
            start = bisect_left(self._names, text, lo=end)
            last = text + _LAST if each.endswith(_ANY) else text
            end = bisect_right(self._names, last, lo=start)
            found.update(self._ids[start:end])
        return found


class KnownStreams:
    """The names of all streams, kept as they are in the store."""

    def __init__(self) -> None:
        self._names = StreamNames()
        self._revision = -1

    def names(self, store: MetadataStore) -> StreamNames:
        """Return the names as they are now; only what changed since the last call is read."""
        revision = store.revision()
        changed = store.servers.maybe_changed_since(self._revision)
        if changed is None:
            streams = store.streams_after(-1, limits.ROWS_MAX)
            self._names = StreamNames((each.stream_id, each.name) for each in streams)
        else:
            for stream_id, found in zip(changed, store.streams_by_id(changed), strict=True):
                if found is None:
                    self._names.discard(stream_id)
                else:
                    self._names.put(stream_id, found.name)
        self._revision = revision
        return self._names


def eligible_streams(
    store: MetadataStore,
    name: str,
    members: Iterable[Member],
    streams: StreamNames,
    *,
    streams_max: int = GROUP_STREAMS_MAX,
) -> Eligible:
    """Return which of all streams each member of a group may have.

    The streams with the lowest ids count, `streams_max` of all members together.
    """
    wanted: dict[str | None, set[tuple[str, ...]]] = {}
    members = tuple(members)
    for each in members:
        wanted.setdefault(each.subject, set()).add(each.patterns)
    # All patterns of a subject first: each member is then matched with `streams_max` at most.
    matching = {
        subject: _readable(store, subject, streams).matching(chain.from_iterable(patterns))
        for subject, patterns in wanted.items()
    }
    found = sorted(set().union(*matching.values()))
    if len(found) > streams_max:
        _LOG.warning(
            "group streams left out group=%s streams=%d limit=%d: nobody reads those with the"
            " highest ids; use several groups",
            *(name, len(found), streams_max),
        )
    kept = set(found[:streams_max])
    eligible = {}
    for subject, subscriptions in wanted.items():
        some = streams.only(matching[subject] & kept)
        for patterns in subscriptions:
            eligible[subject, patterns] = frozenset(some.matching(patterns))
    return {each.member_id: eligible[each.subject, each.patterns] for each in members}


def _readable(store: MetadataStore, subject: str | None, streams: StreamNames) -> StreamNames:
    """Return the streams that a subject may read; None may read all."""
    if subject is None:
        return streams
    own = (each.pattern for each in store.grants.of(subject) if each.right is Right.READ)
    return streams.only(streams.matching(own))
