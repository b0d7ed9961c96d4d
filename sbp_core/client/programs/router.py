"""Placement cache: which range of a stream holds an offset, and which server hosts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbp_core.client.types import EARLIEST, LATEST, RangeInfo, StoreCommit
from sbp_core.wire.dialect import Dialect


@dataclass(frozen=True, slots=True)
class _Placement:
    ranges: tuple[RangeInfo, ...]
    revision: int


class Router:
    """What is known of the ranges of streams, and as of which revision of the metadata.

    Entries are immutable and replaced whole, so threads may share a router. `dialect` is what the
    servers speak: the specification, until their placement driver has shown it. `maybe_commit` is
    the last commit of its metadata that it told.
    """

    def __init__(self) -> None:
        self._maybe_dialect: Dialect | None = None
        self.maybe_commit: StoreCommit | None = None
        self._placements: dict[int, _Placement] = {}

    @property
    def dialect(self) -> Dialect:
        """What the servers speak."""
        return self._maybe_dialect or Dialect.SPECIFICATION

    @dialect.setter
    def dialect(self, shown: Dialect) -> None:
        self._maybe_dialect = shown

    @property
    def has_seen_dialect(self) -> bool:
        """Whether the placement driver has shown what it speaks."""
        return self._maybe_dialect is not None

    def learn(self, stream_id: int, ranges: Iterable[RangeInfo], revision: int = -1) -> None:
        """Replace what is known of a stream. `revision` -1: the server does not count them."""
        ordered = tuple(sorted(ranges, key=lambda piece: piece.range_index))
        self._placements[stream_id] = _Placement(ordered, revision)

    def forget(self, stream_id: int) -> None:
        """Look the stream up again before its next use."""
        self._placements.pop(stream_id, None)

    def maybe_ranges(self, stream_id: int) -> tuple[RangeInfo, ...] | None:
        """Return the ranges of a stream in order, None when they must be looked up."""
        placement = self._placements.get(stream_id)
        return None if placement is None else placement.ranges

    def unknown(self, stream_ids: Iterable[int]) -> list[int]:
        """Return which of the streams must be looked up, each once."""
        return [each for each in dict.fromkeys(stream_ids) if each not in self._placements]

    def maybe_revision(self, stream_ids: Iterable[int]) -> int | None:
        """Return the one revision as of which all the streams are known, None if there is none."""
        placements = [self._placements.get(each) for each in stream_ids]
        revisions = {-1 if entry is None else entry.revision for entry in placements}
        return revisions.pop() if len(revisions) == 1 and -1 not in revisions else None

    def maybe_open_range(self, stream_id: int) -> RangeInfo | None:
        """Return the range that takes appends: the last one, unless it is sealed."""
        ranges = self.maybe_ranges(stream_id)
        return ranges[-1] if ranges and ranges[-1].end_offset is None else None

    def maybe_range_at(self, stream_id: int, offset: int) -> RangeInfo | None:
        """Return the range to fetch `offset` from, None when no known range holds it.

        The end of a last range that is sealed belongs to that range.
        """
        ranges = self.maybe_ranges(stream_id)
        if not ranges:
            return None
        if offset == EARLIEST:
            return ranges[0]
        if offset == LATEST:
            return ranges[-1]
        for piece in reversed(ranges):
            if piece.start_offset <= offset:
                is_inside = piece.end_offset is None or offset < piece.end_offset
                is_tail = piece is ranges[-1] and offset == piece.end_offset
                return piece if is_inside or is_tail else None
        return None
