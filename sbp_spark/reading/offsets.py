"""Source offsets, which Spark writes into a query's checkpoint as canonical, versioned JSON.

Spark compares offsets as JSON text, so equal offsets must have equal text: objects are built with
their keys sorted as strings, as `json.dumps(..., sort_keys=True)` would.

A new query's offset is the constant INITIAL. Spark may ask for it again after a crash, when the
tail has moved on. Therefore the first end offset in which a stream appears also has the start that
was resolved for it, as its base. The start is read back from there.

Versions 2 and 3 have one text for all streams: Spark writes and parses the positions, in Python and
in Java, each time it asks for the latest offset. An object for each stream takes forty times as
long for thousands of streams. Version 3 is written only for what version 2 cannot
express, so offsets of earlier releases keep their text, except for `target`: it was where an
interrupted run with Trigger.AvailableNow was to end, and is not kept any more.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, NamedTuple

from sbp_core.client import StoreCommit, StreamInfo
from sbp_core.errors import SbpError
from sbp_spark.reading.losses import Loss

CREATED_UNKNOWN: Final = -1
"""`created_at_ms` of a stream whose placement driver does not return it; it matches any other."""
NEW_CHECKPOINT: Final = "start the query with a new checkpointLocation"

_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = "(0|[1-9][0-9]{0,18})"
_ENTRY: Final = re.compile(
    f"{_NUMBER}={_NUMBER}(?:@{_NUMBER})?"
    f"(?:,base={_NUMBER})?(?:,end={_NUMBER})?(?:,target={_NUMBER})?(?:,until={_NUMBER})?"
)
_GRAMMAR: Final = (
    "STREAM_ID=NEXT_OFFSET@CREATED_MS, perhaps with ,base= ,end= ,target= ,until= in this order,"
    " each a whole number within int64"
)


class CheckpointError(SbpError):
    """The checkpoint holds an offset from which this source cannot continue."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far one stream is read: `next_offset` is the next one to read.

    `stream_id` and `created_at_ms` (Unix time) together identify the stream: a stream that is
    deleted and created again differs in one of them. `base_offset` is the resolved start, known
    only in the first end offset in which the stream appears. `end_offset` is where reading ends, if
    that was resolved from the tail or from a time: it is kept as long as the query asks for such an
    end. `end_time_ms` (Unix time) is that time; without `end_offset` it has not come yet.
    """

    stream_id: int
    created_at_ms: int
    next_offset: int
    base_offset: int | None = None
    end_offset: int | None = None
    end_time_ms: int | None = None

    def is_same_stream(self, other: StreamPosition) -> bool:
        """Whether both are positions in one and the same incarnation of a stream."""
        created = {self.created_at_ms, other.created_at_ms} - {CREATED_UNKNOWN}
        return self.stream_id == other.stream_id and len(created) <= 1


def positions_text(positions: Iterable[StreamPosition]) -> str:
    """Return the positions of all streams, in the order of their ids: equal ones as equal text."""
    return " ".join(map(_entry, sorted(positions, key=attrgetter("stream_id"))))


def parse_positions(value: object) -> dict[int, StreamPosition]:
    """Return the positions that a text contains, by stream id. Raises CheckpointError."""
    if not isinstance(value, str):
        raise foreign(value, f"streams to be a text of {_GRAMMAR}")
    entries = value.split(" ") if value else []
    positions = {at.stream_id: at for at in map(_parse_entry, entries)}
    if len(positions) < len(entries):
        raise foreign(value, "each stream once")
    return positions


def parse_stream_id(key: object) -> int:
    """Return the id that is the key of a JSON object. Raises CheckpointError."""
    if not isinstance(key, str) or not (key.isascii() and key.isdecimal() and len(key) <= 19):
        raise foreign(key, "a stream id in decimal digits as key")
    stream_id = int(key)
    if str(stream_id) != key or stream_id > _INT64_MAX:
        raise foreign(key, "a stream id without leading zeros, within int64, as key")
    return stream_id


def foreign(value: object, expected: str) -> CheckpointError:
    """Return the error for what no offset of this source has in it."""
    return CheckpointError(
        f"the checkpoint has {reprlib.repr(value)}, which is no offset of the sbp source; expected"
        f" {expected}; if it was edited or damaged, restore it; if another source wrote it,"
        f" {NEW_CHECKPOINT}"
    )


def _entry(at: StreamPosition) -> str:
    created = "" if at.created_at_ms == CREATED_UNKNOWN else f"@{at.created_at_ms}"
    base = "" if at.base_offset is None else f",base={at.base_offset}"
    end = "" if at.end_offset is None else f",end={at.end_offset}"
    until = "" if at.end_time_ms is None else f",until={at.end_time_ms}"
    return f"{at.stream_id}={at.next_offset}{created}{base}{end}{until}"


def _parse_entry(entry: str) -> StreamPosition:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise foreign(entry, _GRAMMAR)
    stream_id, next_offset, created_at_ms, base, end, _, until = (
        None if number is None else int(number) for number in match.groups()
    )
    assert stream_id is not None
    assert next_offset is not None
    if created_at_ms is None:
        created_at_ms = CREATED_UNKNOWN
    if max(stream_id, next_offset, created_at_ms, *filter(None, (base, end, until))) > _INT64_MAX:
        raise foreign(entry, _GRAMMAR)
    if base is not None and base > next_offset:
        raise foreign(base, f"base of stream {stream_id} not to be above its next")
    return StreamPosition(stream_id, created_at_ms, next_offset, base, end, until)


FORMAT_VERSION: Final = 3

_PLAIN_VERSION: Final = 2
_PLAIN_KEYS: Final = {"lost", "stalled"}
_OPTIONAL_KEYS: Final = {
    _PLAIN_VERSION: _PLAIN_KEYS,
    FORMAT_VERSION: _PLAIN_KEYS | {"left_out", "store_commit", "store_life"},
}
"""By version that is read."""


class StreamChangedError(CheckpointError):
    """A stream of the checkpoint was deleted, created again, moved backwards or left out."""


class Interval(NamedTuple):
    """The offsets [start_offset, end_offset) of one stream."""

    stream_id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The position in every stream, by stream id. Before the first micro-batch it is INITIAL.

    `lost` are the lost records that were known when the offset was decided, if the query reports
    losses. `stalled` are streams that were left out of the
    micro-batch because a range server was down, each with the time since when, in ms (UTC).
    `left_out` are streams that were read before and are no longer selected: each continues from its
    position if it is selected again. `commit` is the last commit of the placement driver's
    metadata when the offset was decided: metadata without it were restored from an older copy.
    """

    streams: Mapping[int, StreamPosition]
    is_initial: bool = False
    lost: tuple[Loss, ...] = ()
    stalled: Mapping[int, int] = field(default_factory=dict)
    left_out: Mapping[int, StreamPosition] = field(default_factory=dict)
    commit: StoreCommit | None = None

    @property
    def pending(self) -> frozenset[int]:
        """Streams of the query's start whose servers have been down since: nothing is read yet."""
        return frozenset(self.stalled.keys() - self.streams.keys())

    def maybe_position(self, stream_id: int) -> StreamPosition | None:
        """Return how far a stream is read, even if it is left out now; None: never."""
        return self.streams.get(stream_id) or self.left_out.get(stream_id)

    def next_offsets(self) -> dict[int, int]:
        """Return how far each stream is read, by id."""
        return {stream_id: at.next_offset for stream_id, at in self.streams.items()}

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; equal offsets give equal `json.dumps` text."""
        if self.is_initial:
            return {"initial": True, "version": _PLAIN_VERSION}
        commit = self.commit
        stalled = ((str(stream_id), since_ms) for stream_id, since_ms in self.stalled.items())
        return {
            **({"left_out": positions_text(self.left_out.values())} if self.left_out else {}),
            **({"lost": _lost_to_json(self.lost)} if self.lost else {}),
            **({"stalled": dict(sorted(stalled))} if self.stalled else {}),
            **({"store_commit": commit.number, "store_life": commit.life} if commit else {}),
            "streams": positions_text(self.streams.values()),
            "version": FORMAT_VERSION if self.left_out or commit else _PLAIN_VERSION,
        }

    @classmethod
    def from_json(cls, value: object) -> SourceOffset:
        """Return the offset of a parsed JSON value; raises CheckpointError if it is not one."""
        streams = _maybe_streams(value)
        if streams is None:
            return INITIAL
        assert isinstance(value, Mapping)
        lost = tuple(_parse_lost(value["lost"])) if "lost" in value else ()
        stalled = dict(_parse_stalled(value["stalled"])) if "stalled" in value else {}
        left_out = parse_positions(value["left_out"]) if "left_out" in value else {}
        if "left_out" in value and (not left_out or left_out.keys() & streams.keys()):
            raise foreign(value["left_out"], "left_out to name streams that are not in streams")
        commit = _maybe_commit(value)
        return cls(streams, lost=lost, stalled=stalled, left_out=left_out, commit=commit)


INITIAL: Final = SourceOffset({}, is_initial=True)


def advance(
    start: SourceOffset,
    ends: Iterable[StreamPosition],
    lost: Iterable[Loss] = (),
    stalled: Mapping[int, int] | None = None,
    *,
    commit: StoreCommit | None = None,
) -> SourceOffset:
    """Return the end offset of a micro-batch from `start` to `ends`; `lost` records are not read.

    `ends` leaves out streams that are no longer read, and may name new ones. Its `base_offset` is
    required for a new stream and has no meaning for others. A stream that has not moved keeps its
    entry, and a stream that has moved loses its base. If no stream has moved, the result is `start`
    itself: a new `stalled` stream or a new `commit` makes no micro-batch. Without a `commit` the
    commit of `start` stays. Raises as `intervals` does.
    """
    streams: dict[int, StreamPosition] = {}
    for end in ends:
        known = start.streams.get(end.stream_id)
        if known is None or not known.is_same_stream(end):
            streams[end.stream_id] = end
            continue
        is_unknown = end.created_at_ms == CREATED_UNKNOWN
        created_at_ms = known.created_at_ms if is_unknown else end.created_at_ms
        moved = replace(end, created_at_ms=created_at_ms, base_offset=None)
        has_moved = replace(moved, base_offset=known.base_offset) != known
        streams[end.stream_id] = moved if has_moved else known
    ordered = tuple(sorted(lost, key=attrgetter("stream_id", "start_offset")))
    result = replace(start, streams=streams, is_initial=False, lost=ordered, stalled=stalled or {})
    if replace(result, lost=start.lost, stalled=start.stalled) == start and not result.lost:
        return start
    intervals(start, result)
    return replace(result, commit=commit or start.commit)


def intervals(start: SourceOffset, end: SourceOffset) -> tuple[Interval, ...]:
    """Return the interval of each stream of `end` between two offsets, by ascending stream id.

    A stream that `start` does not have, or has as another incarnation, is read from its base. A
    stream that was left out is read from where it was. An interval begins after the records that
    `end` has as lost, and may be empty. Raises
    StreamChangedError if a stream went backwards, CheckpointError if a new one has no base.
    """
    found = []
    for stream_id in sorted(end.streams):
        stop = end.streams[stream_id].next_offset
        begin = _begin(start.maybe_position(stream_id), end.streams[stream_id])
        for loss in end.lost:
            if loss.stream_id == stream_id and loss.start_offset <= begin:
                begin = min(stop, max(begin, loss.end_offset or begin))
        found.append(Interval(stream_id, begin, stop))
    return tuple(found)


def nonempty(found: Iterable[Interval]) -> list[Interval]:
    """Return the intervals that have offsets."""
    return [each for each in found if each.start_offset < each.end_offset]


def find_gone(
    positions: Iterable[StreamPosition], streams: Mapping[int, StreamInfo]
) -> list[StreamPosition]:
    """Return the positions whose stream is not among `streams`, by id, or was created again."""
    return [
        at
        for at in positions
        if (info := streams.get(at.stream_id)) is None
        or not at.is_same_stream(StreamPosition(info.stream_id, info.created_at_ms, 0))
    ]


def _begin(known: StreamPosition | None, end: StreamPosition) -> int:
    if known is None or not known.is_same_stream(end):
        if end.base_offset is None or end.base_offset > end.next_offset:
            raise CheckpointError(
                f"stream {end.stream_id} appears in the checkpoint with next offset"
                f" {end.next_offset} but base {end.base_offset}; expected the offset at which"
                " reading began, not above it; the checkpoint is damaged or misses a batch:"
                f" restore it, or {NEW_CHECKPOINT}"
            )
        return end.base_offset
    if end.next_offset < known.next_offset:
        raise StreamChangedError(
            f"stream {end.stream_id} went backwards from offset {known.next_offset} to"
            f" {end.next_offset}; expected at least {known.next_offset}; find out what the range"
            f" servers have lost, then {NEW_CHECKPOINT}"
        )
    return known.next_offset


def _lost_to_json(lost: Iterable[Loss]) -> dict[str, list[list[int | None]]]:
    """Return the intervals by stream id, keys in canonical order; null where no end is known."""
    found: dict[str, list[list[int | None]]] = {}
    for loss in lost:
        found.setdefault(str(loss.stream_id), []).append([loss.start_offset, loss.end_offset])
    return dict(sorted(found.items()))


def _parse_stalled(value: object) -> Iterator[tuple[int, int]]:
    if not isinstance(value, Mapping) or not value:
        raise foreign(value, "stalled to be an object that is not empty")
    for key, since_ms in value.items():
        stream_id = parse_stream_id(key)
        if type(since_ms) is not int or not 0 <= since_ms <= _INT64_MAX:
            raise foreign(since_ms, f"since when stream {stream_id} is stalled, in ms")
        yield stream_id, since_ms


def _parse_lost(value: object) -> Iterator[Loss]:
    if not isinstance(value, Mapping) or not value:
        raise foreign(value, "lost to be an object that is not empty")
    for key, pairs in value.items():
        stream_id = parse_stream_id(key)
        for pair in pairs if isinstance(pairs, list) and pairs else [pairs]:
            is_pair = isinstance(pair, list) and len(pair) == 2
            if not is_pair or not all(type(each) is int for each in pair if each is not None):
                raise foreign(pair, f"pairs of offsets as what stream {stream_id} has lost")
            start_offset, end_offset = pair
            if start_offset is None or not 0 <= start_offset <= (
                _INT64_MAX if end_offset is None else min(end_offset, _INT64_MAX)
            ):
                raise foreign(pair, f"an interval as what stream {stream_id} has lost")
            yield Loss(stream_id, start_offset, end_offset)


def _maybe_commit(value: Mapping[str, object]) -> StoreCommit | None:
    if not value.keys() & {"store_commit", "store_life"}:
        return None
    number, life = value.get("store_commit"), value.get("store_life")
    if type(number) is not int or not isinstance(life, str):
        raise foreign((number, life), "store_commit and store_life, a number and a text")
    commit = StoreCommit(number, life)
    if not commit.is_plausible:
        raise foreign((number, life), "a commit of a placement driver's metadata, and its life")
    return commit


def _maybe_streams(value: object) -> dict[int, StreamPosition] | None:
    """Return the streams of an offset, None for the sentinel."""
    if not isinstance(value, Mapping) or "version" not in value:
        raise foreign(value, "an object with a version")
    version = value["version"]
    if type(version) is not int or version not in _OPTIONAL_KEYS:
        raise CheckpointError(
            f"the checkpoint's offset has version {reprlib.repr(version)}; this release reads"
            f" versions {_PLAIN_VERSION} and {FORMAT_VERSION}; run the release of sbp-spark that"
            f" wrote it (or a newer one), or {NEW_CHECKPOINT}"
        )
    if value.keys() == {"initial", "version"} and value["initial"] is True:
        return None
    if value.keys() - _OPTIONAL_KEYS[version] != {"streams", "version"}:
        raise foreign(value, "the keys streams and version")
    return parse_positions(value["streams"])
