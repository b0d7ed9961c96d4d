"""Which streams are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.limits import STREAM_NAME_LENGTH_MAX
from sbp_spark.options.reading import INT64_MAX, OptionReader, shown

_STREAM_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{STREAM_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream as the user names it: decimal digits are its id, anything else its name."""

    text: str

    @property
    def maybe_id(self) -> int | None:
        """The stream id, None if the stream is given by name."""
        return int(self.text) if self.text.isdecimal() else None

    @property
    def maybe_name(self) -> str | None:
        """The stream name, None if the stream is given by id."""
        return None if self.text.isdecimal() else self.text

    def __str__(self) -> str:
        return self.text


class FoundStream(NamedTuple):
    """The stream that a name or id led to: what it is called may change, this does not."""

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
    """These streams; `option` is the one that names them."""

    refs: tuple[StreamRef, ...]
    option: str = "streams"


@dataclass(frozen=True, slots=True)
class StreamPattern:
    """All streams, those to come too, whose whole name a regular expression matches."""

    pattern: str

    def matches(self, name: str | None) -> bool:
        """Whether a stream with this name is meant; one without a name never is."""
        return name is not None and re.fullmatch(self.pattern, name) is not None


Selection: TypeAlias = StreamList | StreamPattern

SELECTIONS: Final = ("streams", "streamsPattern", "path")


def read_selection(reader: OptionReader) -> Selection:
    """Return the streams that are read; after a fault the result has no meaning."""
    given = [name for name in SELECTIONS if reader.is_given(name)]
    if len(given) != 1:
        wrong = f"is given beside {' and '.join(given[1:])}" if given else "is missing"
        expected = f"exactly one of {', '.join(SELECTIONS)}"
        remedy = "keep one of them" if given else 'add .option("streams", ...)'
        reader.add_fault(given[0] if given else "streams", wrong, expected, remedy)
    if given == ["streamsPattern"]:
        return _read_pattern(reader)
    return read_stream_list(reader, given[0]) if len(given) == 1 else StreamList(())


def _read_pattern(reader: OptionReader) -> StreamPattern:
    name = "streamsPattern"
    text = reader.maybe_text(name) or ""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        wrong = f"is {shown(text)}, which is wrong: {error}"
        remedy = "correct it, for example orders-.*"
        reader.add_fault(name, wrong, "a regular expression for whole names", remedy)
    return StreamPattern(text)


def read_stream_list(reader: OptionReader, option: str) -> StreamList:
    """Return the streams that an option lists, those of them that are right."""
    expected = "stream names or ids, separated by commas"
    text = reader.maybe_text(option)
    if text is None:
        return StreamList((), option)
    streams: dict[str, StreamRef] = {}
    for position, item in enumerate(text.split(","), start=1):
        name = item.strip()
        wrong = remedy = ""
        if not name:
            wrong, remedy = f"has no name at position {position}", "remove the superfluous comma"
        elif name in streams:
            wrong, remedy = f"names {shown(name)} more than once", "name each stream once"
        else:
            try:
                streams[name] = parse_stream_ref(name)
            except ConfigurationError as error:
                wrong, remedy = f"at position {position}: {error}", "correct the name"
        if wrong:
            reader.add_fault(option, wrong, expected, remedy)
    return StreamList(tuple(streams.values()), option)
