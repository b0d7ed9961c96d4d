"""Source offsets: what Spark writes into a query's checkpoint, as canonical, versioned JSON.

Spark compares offsets as JSON text, so equal offsets must have equal text: objects are built with
their keys sorted as strings, as `json.dumps(..., sort_keys=True)` would.

A fresh query's offset is the constant INITIAL. Spark may ask for it again after a crash, when the
tail has moved on; therefore the start that was resolved for a stream travels as its base inside
the first end offset in which the stream appears, and is read back from there.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sbp_core.errors import SbpError

FORMAT_VERSION: Final = 1
CREATED_UNKNOWN: Final = -1
"""`created_at_ms` of a stream whose placement driver does not tell it; it fits any other."""

_INT64_MAX: Final = 2**63 - 1
_LISTED_MAX: Final = 20
_NEW_CHECKPOINT: Final = "start the query with a new checkpointLocation"


class CheckpointError(SbpError):
    """The checkpoint holds an offset that this source cannot go on from."""


class StreamChangedError(CheckpointError):
    """A stream of the checkpoint was deleted, created anew, moved backwards or left out."""


class Interval(NamedTuple):
    """The offsets [start_offset, end_offset) of one stream."""

    stream_id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far one stream is read: `next_offset` is the next one to read.

    `stream_id` and `created_at_ms` (Unix time) together identify the stream: one that is deleted
    and created anew differs in one of them. `base_offset` is the resolved start, known only in
    the first end offset in which the stream appears. `end_offset` is where reading ends, if that
    was resolved from the tail: it is kept as long as the query asks for such an end.
    `target_offset` is how far a run with Trigger.AvailableNow goes that is not there yet.
    """

    stream_id: int
    created_at_ms: int
    next_offset: int
    base_offset: int | None = None
    end_offset: int | None = None
    target_offset: int | None = None

    def to_json(self) -> dict[str, int]:
        """Return the JSON form, keys in canonical order."""
        fields = {
            "base": self.base_offset,
            "created": self.created_at_ms,
            "end": self.end_offset,
            "next": self.next_offset,
            "target": self.target_offset,
        }
        return {key: value for key, value in fields.items() if value is not None}

    def is_same_stream(self, other: StreamPosition) -> bool:
        """Whether both are positions in one and the same incarnation of a stream."""
        created = {self.created_at_ms, other.created_at_ms} - {CREATED_UNKNOWN}
        return self.stream_id == other.stream_id and len(created) <= 1


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The position in every stream, by stream id. Before the first micro-batch it is INITIAL."""

    streams: Mapping[int, StreamPosition]
    is_initial: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; equal offsets give equal `json.dumps` text."""
        if self.is_initial:
            return {"initial": True, "version": FORMAT_VERSION}
        entries = sorted((str(stream_id), at) for stream_id, at in self.streams.items())
        return {"streams": {key: at.to_json() for key, at in entries}, "version": FORMAT_VERSION}

    @classmethod
    def from_json(cls, value: object) -> SourceOffset:
        """Return the offset of a parsed JSON value; raises CheckpointError if it is not one."""
        streams = _maybe_streams(value)
        return INITIAL if streams is None else cls(streams)


INITIAL: Final = SourceOffset({}, is_initial=True)


def advance(start: SourceOffset, ends: Iterable[StreamPosition]) -> SourceOffset:
    """Return the end offset of a micro-batch from `start` to `ends`.

    `ends` names every stream of `start`, and may name new ones. Its `base_offset` is required for
    a new stream and has no meaning for others. A stream that has not moved keeps its entry as it
    is, so that nothing new gives the text of `start`; one that has moved loses its base.
    Raises StreamChangedError as `intervals` does.
    """
    streams: dict[int, StreamPosition] = {}
    for end in ends:
        known = start.streams.get(end.stream_id)
        if known is None:
            streams[end.stream_id] = end
        elif (
            known.is_same_stream(end)
            and replace(end, created_at_ms=known.created_at_ms, base_offset=known.base_offset)
            == known
        ):
            streams[end.stream_id] = known
        else:
            is_unknown = end.created_at_ms == CREATED_UNKNOWN
            created_at_ms = known.created_at_ms if is_unknown else end.created_at_ms
            streams[end.stream_id] = replace(end, created_at_ms=created_at_ms, base_offset=None)
    result = SourceOffset(streams)
    intervals(start, result)
    return result


def intervals(start: SourceOffset, end: SourceOffset) -> tuple[Interval, ...]:
    """Return what lies between two offsets, for every stream of `end` in ascending id order.

    A stream that `start` does not have is read from its base; intervals may be empty.
    Raises StreamChangedError if a stream of `start` is missing in `end`, is another incarnation
    there, or went backwards, and CheckpointError if a new stream has no base.
    """
    lost = sorted(start.streams.keys() - end.streams.keys())
    if lost:
        new = sorted(end.streams.keys() - start.streams.keys())
        raise StreamChangedError(
            f"the checkpoint has read stream {_listed(lost)}, which the query no longer reads"
            f" (new to it: {_listed(new)}): deleted, created anew under the same name, or left out"
            f" of the option streams; name it again, or {_NEW_CHECKPOINT}"
        )
    return tuple(
        _interval(start.streams.get(stream_id), end.streams[stream_id])
        for stream_id in sorted(end.streams)
    )


def _interval(known: StreamPosition | None, end: StreamPosition) -> Interval:
    if known is None:
        if end.base_offset is None or end.base_offset > end.next_offset:
            raise CheckpointError(
                f"stream {end.stream_id} appears in the checkpoint with next offset"
                f" {end.next_offset} but base {end.base_offset}; expected the offset at which"
                " reading began, not above it; the checkpoint is damaged or misses a batch:"
                f" restore it, or {_NEW_CHECKPOINT}"
            )
        return Interval(end.stream_id, end.base_offset, end.next_offset)
    if not known.is_same_stream(end):
        raise StreamChangedError(
            f"stream {end.stream_id} was deleted and created anew: the checkpoint has read one"
            f" created at {known.created_at_ms} ms up to offset {known.next_offset}, now it is"
            f" one created at {end.created_at_ms} ms; to read it, {_NEW_CHECKPOINT}"
        )
    if end.next_offset < known.next_offset:
        raise StreamChangedError(
            f"stream {end.stream_id} went backwards from offset {known.next_offset} to"
            f" {end.next_offset}; expected at least {known.next_offset}; find out what the range"
            f" servers have lost, then {_NEW_CHECKPOINT}"
        )
    return Interval(end.stream_id, known.next_offset, end.next_offset)


def _listed(stream_ids: list[int]) -> str:
    more = f" and {len(stream_ids) - _LISTED_MAX} more" if len(stream_ids) > _LISTED_MAX else ""
    return (", ".join(map(str, stream_ids[:_LISTED_MAX])) or "none") + more


def _maybe_streams(value: object) -> dict[int, StreamPosition] | None:
    """Return the streams of an offset, None for the sentinel."""
    if not isinstance(value, Mapping) or "version" not in value:
        raise _foreign(value, "an object with a version")
    version = value["version"]
    if type(version) is not int or version != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint's offset has version {reprlib.repr(version)}; this release reads"
            f" version {FORMAT_VERSION}; run the release of sbp-spark that wrote it (or a newer"
            f" one), or {_NEW_CHECKPOINT}"
        )
    if value.keys() == {"initial", "version"} and value["initial"] is True:
        return None
    streams = value.get("streams")
    if value.keys() != {"streams", "version"} or not isinstance(streams, Mapping):
        raise _foreign(value, "the keys streams (an object) and version")
    return {at.stream_id: at for at in (_parse_position(*item) for item in streams.items())}


def _parse_position(key: object, value: object) -> StreamPosition:
    where = f"stream {reprlib.repr(key)}"
    if not isinstance(key, str) or not (key.isascii() and key.isdecimal() and len(key) <= 19):
        raise _foreign(key, "a stream id in decimal digits as key")
    stream_id = int(key)
    if str(stream_id) != key or stream_id > _INT64_MAX:
        raise _foreign(key, "a stream id without leading zeros, within int64, as key")
    required, optional = {"created", "next"}, {"base", "end", "target"}
    if not isinstance(value, Mapping) or not required <= value.keys() <= required | optional:
        raise _foreign(
            value, f"an object with created, next and perhaps base, end, target for {where}"
        )
    for name in value:
        low = CREATED_UNKNOWN if name == "created" else 0
        number = value[name]
        if type(number) is not int or not low <= number <= _INT64_MAX:
            raise _foreign(
                number, f"{name} of {where} to be a whole number from {low} to {_INT64_MAX}"
            )
    position = StreamPosition(
        stream_id,
        value["created"],
        value["next"],
        value.get("base"),
        value.get("end"),
        value.get("target"),
    )
    if position.base_offset is not None and position.base_offset > position.next_offset:
        raise _foreign(position.base_offset, f"base of {where} not to be above its next")
    return position


def _foreign(value: object, expected: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint holds no offset of the sbp source: {reprlib.repr(value)}; expected"
        f" {expected}; was it written by another source, or edited? restore it, or"
        f" {_NEW_CHECKPOINT}"
    )
