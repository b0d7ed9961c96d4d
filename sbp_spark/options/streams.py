"""Which streams are meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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


def read_streams(reader: OptionReader) -> tuple[StreamRef, ...]:
    """Return the streams, () after a fault."""
    expected = "stream names or ids, separated by commas"
    text = reader.required_text("streams", expected)
    if text is None:
        return ()
    streams: dict[str, StreamRef] = {}
    is_faulty = False
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
            is_faulty = True
            reader.add_fault("streams", wrong, expected, remedy)
    return () if is_faulty else tuple(streams.values())
