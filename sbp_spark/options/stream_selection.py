"""Streams as options name them: by name, by id, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.limits import STREAM_NAME_LENGTH_MAX
from sbp_spark.options.declaring import INT64_MAX, Given, Kind, Option, OptionReader, option, shown

_STREAM_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{STREAM_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream as the user names it: decimal digits are its id, anything else its name."""

    text: str

    @property
    def key(self) -> int | str:
        """The id or the name, as the client accepts it."""
        return int(self.text) if self.text.isdecimal() else self.text

    def __str__(self) -> str:
        return self.text


class FoundStream(NamedTuple):
    """The identity of a stream that was found by name or id: its name may change, this does not."""

    stream_id: int
    created_at_ms: int

    @classmethod
    def of(cls, info: StreamInfo) -> FoundStream:
        """Return the stream that metadata describe."""
        return cls(info.stream_id, info.created_at_ms)


def find_ids(infos: Iterable[StreamInfo], found: Mapping[str, FoundStream]) -> dict[str, int]:
    """Return the ids of streams by their ids as text, their names, and what they were found by.

    The last counts first, so a stream that still exists is meant by the name that it had.
    """
    ids: dict[str, int] = {}
    named: dict[str, int] = {}
    there = set()
    for info in infos:
        ids[str(info.stream_id)] = info.stream_id
        there.add(FoundStream.of(info))
        if info.name is not None:
            named[info.name] = info.stream_id
    return ids | named | {text: at.stream_id for text, at in found.items() if at in there}


def parse_stream_ref(text: str) -> StreamRef:
    """Return the stream that `text` names; raises ConfigurationError if it is no name and no id."""
    is_number = re.fullmatch(r"[0-9]+", text) is not None
    if is_number and (len(text) > 19 or int(text) > INT64_MAX or str(int(text)) != text):
        raise ConfigurationError(
            f"{shown(text)} is no stream id (0 to {INT64_MAX}, without leading zeros)"
        )
    if not _STREAM_NAME.fullmatch(text) or text in {".", ".."}:
        raise ConfigurationError(
            f"{shown(text)} is no stream name (1 to {STREAM_NAME_LENGTH_MAX} of the characters"
            " A-Z a-z 0-9 . _ - but not '.', '..' or digits only)"
        )
    return StreamRef(text)


@dataclass(frozen=True, slots=True)
class StreamList:
    """These streams. `option` is the option that names them."""

    refs: tuple[StreamRef, ...]
    option: str = "streams"


@dataclass(frozen=True, slots=True)
class StreamPattern:
    """All streams, those to come too, whose whole name a regular expression matches."""

    pattern: str

    def matches(self, name: str | None) -> bool:
        """Whether a stream with this name is selected. A stream without a name never is."""
        return name is not None and re.fullmatch(self.pattern, name) is not None


Selection: TypeAlias = StreamList | StreamPattern


def maybe_stream_ref(given: Given) -> StreamRef | None:
    """Return the stream that an option names, None after a fault."""
    try:
        return parse_stream_ref(given.text)
    except ConfigurationError as error:
        given.refuse("one name or id", f"names no stream: {error}")
        return None


def _parse_list(given: Given) -> StreamList:
    expected = "stream names or ids, separated by commas"
    streams: dict[str, StreamRef] = {}
    for position, item in enumerate(given.text.split(","), start=1):
        name = item.strip()
        try:
            if name in streams:
                given.refuse(expected, f"names {shown(name)} more than once")
            streams[name] = parse_stream_ref(name)
        except ConfigurationError as error:
            given.refuse(expected, f"at position {position}: {error}")
    return StreamList(tuple(streams.values()), given.name)


def _parse_pattern(given: Given) -> StreamPattern:
    try:
        re.compile(given.text)
    except (re.error, RecursionError, OverflowError) as error:
        wrong = f"is {shown(given.text)}, which is wrong: {error}"
        given.refuse("a regular expression for whole names, such as orders-.*", wrong)
    return StreamPattern(given.text)


STREAM: Final = Kind(maybe_stream_ref)
STREAM_LIST: Final = Kind(_parse_list)
NO_STREAMS: Final = StreamList(())

SELECTIONS: Final[tuple[Option[Selection], ...]] = (
    option("streams", STREAM_LIST, NO_STREAMS, unset="required", kafka="subscribe").doc(
        "Streams to read: names or ids, separated by commas. Or give streamsPattern, or path. A"
        " query looks up each name once, when it starts, and goes on reading that stream if it is"
        " renamed, even if another stream gets the name. When the query is started again, give the"
        " new name, or the id; the checkpoint knows streams by their ids."
    ),
    option(
        "streamsPattern", Kind(_parse_pattern), NO_STREAMS, unset="none", kafka="subscribePattern"
    ).doc(
        "Instead of `streams`: a regular expression (Python's) that the whole name of a stream"
        " matches. A streaming query finds streams that are created while it runs, and reads them"
        " from their first record. A stream that is renamed so that it does not match is no longer"
        " read, which is data loss to failOnDataLoss."
    ),
    option("path", STREAM_LIST, NO_STREAMS, unset="none").doc(
        "Instead of `streams`, as in .load('orders,clicks')."
    ),
)


def read_selection(reader: OptionReader) -> Selection:
    """Return the streams that are read; after a fault the result has no meaning."""
    given = [each for each in SELECTIONS if reader.is_given(each.name)]
    if len(given) == 1:
        return reader.value(given[0])
    reader.check_single(SELECTIONS)
    if not given:
        names = ", ".join(each.name for each in SELECTIONS)
        reader.add_fault("streams", "is missing", f"expected one of {names}")
    return NO_STREAMS
