"""Which streams a consumer selects, and how far it has read them. Pure: no I/O, no clock.

A record is *handed out* when the caller gets it, and *done* when the caller asks for the next one.
Automatic commits cover done records only: a record that the caller worked on when the process was
killed is handed out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal

from sbp_core.app import defaults
from sbp_core.client import NO_CURSOR, FetchItem, StreamInfo
from sbp_core.client.types import plain_int
from sbp_core.errors import ConfigurationError, NotFoundError, StatusCode
from sbp_core.wording import listed

_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams by names, by prefixes of names, and by ids. Patterns are written as in grants."""

    names: frozenset[str]
    prefixes: frozenset[str]
    ids: frozenset[int] = frozenset()

    def __str__(self) -> str:
        patterns = (f"{each}{_ANY}" for each in self.prefixes)
        return listed(sorted((*self.names, *patterns, *map(str, self.ids))))

    @property
    def has_ids_only(self) -> bool:
        """Whether the streams are found by id, without a list of all streams."""
        return not self.names and not self.prefixes

    @staticmethod
    def of(patterns: Sequence[str]) -> Selection:
        """Return the selection of names, and of prefixes followed by `*`.

        Raises ConfigurationError for other patterns, and for none.
        """
        if not patterns:
            raise ConfigurationError("a consumer of no stream: pass names, or * for all")
        for each in patterns:
            if not each or _ANY in each[:-1]:
                raise ConfigurationError(
                    f"{each!a} is not a pattern of streams: use a name, a prefix followed by *, or"
                    " * for all"
                )
        return Selection(
            frozenset(each for each in patterns if not each.endswith(_ANY)),
            frozenset(each.removesuffix(_ANY) for each in patterns if each.endswith(_ANY)),
        )

    def of_streams(self, streams: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Return the selected streams. Raises NotFoundError for a name that is missing.

        A pattern may match no stream: matching streams may be created later.
        """
        found = [each for each in streams if self._has(each)]
        missing = self.names - {each.name for each in found}
        if missing:
            raise NotFoundError(
                StatusCode.NOT_FOUND,
                f"there is no stream {listed(sorted(missing))}; create it, or select streams"
                " that may be created later by a pattern",
            )
        return found

    def _has(self, stream: StreamInfo) -> bool:
        name = stream.name
        if name is None:
            return stream.stream_id in self.ids
        return (
            stream.stream_id in self.ids
            or name in self.names
            or any(name.startswith(each) for each in self.prefixes)
        )


Start = Literal["earliest", "latest"] | int | datetime
"""Where to begin: at the first record, behind the last one, at an offset, or at a time."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a stream to read, up to `end_offset`, exclusive; None stands for the end now."""

    start_offset: int
    end_offset: int | None = None


NO_SPANS: Final[Mapping[int, Span]] = MappingProxyType({})


@dataclass(slots=True)
class Position:
    """How far one stream is read.

    The next record to hand out is at `next_offset`, and records before `done_offset` are done. The
    consumer stops before `end_offset`, which is None if it follows the stream. A seek increases
    `seek_count`: batches that were fetched before it are not handed out.
    """

    stream_id: int
    stream: str
    next_offset: int
    done_offset: int
    end_offset: int | None
    committed_offset: int | None
    seek_count: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to read."""
        return self.end_offset is not None and self.next_offset >= self.end_offset


class Positions:
    """The positions of a consumer in the streams that are its own now."""

    def __init__(self) -> None:
        self._by_id: dict[int, Position] = {}
        self._turn = 0

    @property
    def stream_ids(self) -> frozenset[int]:
        """The ids of the streams."""
        return frozenset(self._by_id)

    @property
    def is_over(self) -> bool:
        """Whether all streams are read to their ends."""
        return all(each.is_over for each in self._by_id.values())

    @property
    def all(self) -> list[Position]:
        """The positions."""
        return list(self._by_id.values())

    def maybe_at(self, stream_id: int) -> Position | None:
        """Return the position in a stream, None if the consumer does not read the stream."""
        return self._by_id.get(stream_id)

    def of(self, stream: str) -> Position:
        """Return the position in a stream by its name. Raises ConfigurationError."""
        for each in self._by_id.values():
            if each.stream == stream:
                return each
        raise ConfigurationError(
            f"the consumer does not read stream {stream!r} now; it reads"
            f" {listed(sorted(each.stream for each in self._by_id.values())) or 'none'}"
        )

    def add(
        self,
        stream_id: int,
        stream: str,
        offset: int,
        *,
        end_offset: int | None,
        committed_offset: int | None,
    ) -> None:
        """Begin to read a stream."""
        assert stream_id not in self._by_id
        self._by_id[stream_id] = Position(
            stream_id, stream, offset, offset, end_offset, committed_offset
        )

    def drop(self, stream_ids: Iterable[int]) -> None:
        """Stop reading streams: none of their records is handed out any more."""
        for each in stream_ids:
            dropped = self._by_id.pop(each)
            dropped.seek_count += 1

    def seek(self, position: Position, offset: int) -> None:
        """Read on at an offset, forward or back."""
        position.next_offset = position.done_offset = offset
        position.seek_count += 1

    def next_items(self, bytes_max: int) -> list[FetchItem]:
        """Return what to fetch next: the streams that are not read to their ends, in turn."""
        open_ones = [each for each in self._by_id.values() if not each.is_over]
        if len(open_ones) > defaults.FETCH_STREAMS_MAX:
            start = self._turn % len(open_ones)
            open_ones = (open_ones[start:] + open_ones[:start])[: defaults.FETCH_STREAMS_MAX]
            self._turn = start + defaults.FETCH_STREAMS_MAX
        return [
            FetchItem(each.stream_id, each.next_offset, each.end_offset, bytes_max)
            for each in open_ones
        ]

    def finish(self) -> None:
        """Mark all records that were handed out as done."""
        for each in self._by_id.values():
            each.done_offset = each.next_offset

    def to_commit(self) -> dict[int, int]:
        """Return the offsets to commit, by stream id, of streams with a new done offset."""
        return {
            stream_id: each.done_offset
            for stream_id, each in self._by_id.items()
            if each.done_offset != each.committed_offset
        }

    def checked(self, offsets: Mapping[str, int]) -> dict[int, int]:
        """Return the caller's offsets by stream id. Raises ConfigurationError for unusable ones."""
        chosen: dict[int, int] = {}
        for stream, offset in offsets.items():
            at = self.of(stream)
            number = plain_int(offset)
            if not isinstance(number, int) or not 0 <= number <= at.next_offset:
                raise ConfigurationError(
                    f"offset {offset!r} of stream {stream} cannot be committed: only records before"
                    f" {at.next_offset} were handed out"
                )
            chosen[at.stream_id] = number
        return chosen

    def checked_cursors(
        self, expected: Mapping[str, int | None], offsets: Mapping[str, int]
    ) -> dict[int, int]:
        """Return the expected cursors by stream id. Raises ConfigurationError.

        None stands for no cursor. An offset has to be committed for each of the streams.
        """
        cursors: dict[int, int] = {}
        for stream, cursor in expected.items():
            if stream not in offsets:
                raise ConfigurationError(
                    f"expected names stream {stream}, for which no offset is committed"
                )
            number = plain_int(cursor)
            if number is not None and (not isinstance(number, int) or number < 0):
                raise ConfigurationError(
                    f"expected {cursor!r} of stream {stream} is no offset; None means no cursor"
                )
            cursors[self.of(stream).stream_id] = NO_CURSOR if number is None else number
        return cursors

    def on_committed(self, offsets: Mapping[int, int]) -> None:
        """Record that offsets are committed."""
        for stream_id, offset in offsets.items():
            if stream_id in self._by_id:
                self._by_id[stream_id].committed_offset = offset
