"""Options of the source and of the sink: strings in, frozen values out, all faults at once."""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.limits import ISOLATION_CLASS_LENGTH_MAX, STREAM_NAME_LENGTH_MAX

EARLIEST: Final = -2
"""Start at the oldest offset that is still stored."""
LATEST: Final = -1
"""Start at the stream's tail."""

_INT64_MAX: Final = 2**63 - 1
_SHOWN_LENGTH_MAX: Final = 80
_HOST_LENGTH_MAX: Final = 253
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_STREAM_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{STREAM_NAME_LENGTH_MAX}}}")
_ISOLATION_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{ISOLATION_CLASS_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option as the documentation shows it; `default` is None where the option is required."""

    name: str
    default: str | None
    meaning: str


_ENDPOINT = OptionSpec(
    "endpoint", None, "Placement driver to ask, host:port; an IPv6 address stands in brackets."
)

_NETWORK_COMPRESSION = OptionSpec(
    "networkCompression",
    "none",
    "How records travel between Spark's workers and the range servers: none, or zstd, which spares"
    " a slow network and costs processor time. A server that knows no compression gets none.",
)
_ISOLATION_CLASS = OptionSpec(
    "isolationClass",
    "none",
    "Name of a class of readers, such as backfill: a range server divides its reads fairly between"
    " classes, so that none of them waits behind the backlog of another.",
)

SOURCE_OPTIONS: Final = (
    _ENDPOINT,
    OptionSpec("streams", None, "Streams to read: names or ids, separated by commas."),
    OptionSpec(
        "startingOffsets",
        "latest (streaming), earliest (batch)",
        "Where a new query starts: earliest, latest, or a JSON object with the offset of each"
        " stream of `streams` (-2 earliest, -1 latest). A restarted query goes on from its"
        " checkpoint. Batch reads cannot start at the latest offset.",
    ),
    OptionSpec(
        "maxRecordsPerTrigger",
        "unlimited",
        "Upper bound on the records of one micro-batch, over all streams. Streaming only.",
    ),
    OptionSpec("includeHeaders", "false", "Whether rows have the column `headers`: true, false."),
    _NETWORK_COMPRESSION,
    _ISOLATION_CLASS,
)

SINK_OPTIONS: Final = (
    _ENDPOINT,
    OptionSpec(
        "stream", "the column `stream`", "Stream to write to, a name or id; overrides the column."
    ),
    _NETWORK_COMPRESSION,
)

_SINK_KEYS_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address; `host` is a name or an address, IPv6 without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a cluster: where its placement driver is, and how to talk to them.

    `isolation_class` "" is the class of those that name none.
    """

    endpoint: Endpoint
    is_compressed: bool = False
    isolation_class: str = ""

    def __str__(self) -> str:
        return str(self.endpoint)


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


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a source; `starting_offsets[i]` belongs to `streams[i]`, may be EARLIEST, LATEST.

    `records_per_trigger_max` is None where a micro-batch is unlimited, and always in batch reads.
    """

    servers: Servers
    streams: tuple[StreamRef, ...]
    starting_offsets: tuple[int, ...]
    records_per_trigger_max: int | None
    include_headers: bool


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a sink; `stream` is None where each row names its stream itself."""

    servers: Servers
    stream: StreamRef | None


class _WrongValueError(Exception):
    """A value that cannot be used: what is wrong with it, and the remedy."""

    def __init__(self, wrong: str, remedy: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.remedy = remedy


class _OptionReader:
    """The options of one reader or writer, looked up without regard to case; collects faults."""

    def __init__(
        self, options: Mapping[str, str], specs: tuple[OptionSpec, ...], ignored: frozenset[str]
    ) -> None:
        self._names = {spec.name.lower(): spec.name for spec in specs}
        self._values: dict[str, str] = {}
        self._faults: list[str] = []
        for key, value in sorted(options.items()):
            folded = key.lower()
            if folded in self._values:
                self.add_fault(
                    self._names[folded],
                    "is given more than once, spelled differently",
                    "one value (case does not matter)",
                    "keep one of them",
                )
            elif folded in self._names:
                self._values[folded] = value.strip()
            elif folded == "path":
                self.add_fault(
                    "path",
                    "has no meaning here",
                    "streams to be named by an option",
                    "call load(), start() or save() without a path",
                )
            elif folded not in ignored:
                self._add_unknown(key)

    def add_fault(self, name: str, wrong: str, expected: str, remedy: str) -> None:
        self._faults.append(f"{name} {wrong}; expected {expected}; {remedy}")

    def maybe_text(self, name: str) -> str | None:
        """Return the option's value, None if it is absent; an empty value is a fault."""
        text = self._values.get(name.lower())
        if text == "":
            self.add_fault(name, "is empty", "a value", "give one, or leave the option out")
            return None
        return text

    def required_text(self, name: str, expected: str) -> str | None:
        text = self._values.get(name.lower())
        if not text:
            wrong = "is missing" if text is None else "is empty"
            self.add_fault(name, wrong, expected, f'add .option("{name}", ...)')
            return None
        return text

    def check_faults(self, side: str) -> None:
        """Raise ConfigurationError if there was any fault; the message lists all of them."""
        if self._faults:
            count = len(self._faults)
            head = f"{count} fault{'s' if count > 1 else ''} in the options of the sbp {side}:"
            raise ConfigurationError("\n".join([head, *(f"  - {line}" for line in self._faults)]))

    def _add_unknown(self, key: str) -> None:
        near = difflib.get_close_matches(key.lower(), self._names, n=1)
        remedy = f"did you mean {self._names[near[0]]}?" if near else "remove it"
        expected = "one of " + ", ".join(self._names.values())
        self.add_fault(_shown(key), "is not an option", expected, remedy)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the source's options; `streaming` tells readStream from read.

    Raises ConfigurationError with one line per fault.
    """
    reader = _OptionReader(options, SOURCE_OPTIONS, frozenset())
    endpoint = _read_endpoint(reader)
    streams = _read_streams(reader)
    starting_offsets = _read_starting_offsets(reader, streams, streaming=streaming)
    records_max = _read_records_max(reader, streaming=streaming)
    include_headers = _read_flag(reader, "includeHeaders", default=False)
    is_compressed = _read_network_compression(reader)
    isolation_class = _read_isolation_class(reader)
    reader.check_faults("source")
    assert endpoint is not None
    servers = Servers(endpoint, is_compressed, isolation_class)
    return SourceOptions(servers, streams, starting_offsets, records_max, include_headers)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the sink's options; what Spark itself adds to them is passed over.

    Raises ConfigurationError with one line per fault.
    """
    reader = _OptionReader(options, SINK_OPTIONS, _SINK_KEYS_OF_SPARK)
    endpoint = _read_endpoint(reader)
    stream = None
    text = reader.maybe_text("stream")
    if text is not None:
        try:
            stream = parse_stream_ref(text)
        except ConfigurationError as error:
            reader.add_fault("stream", f"names no stream: {error}", "one name or id", "correct it")
    is_compressed = _read_network_compression(reader)
    reader.check_faults("sink")
    assert endpoint is not None
    return SinkOptions(Servers(endpoint, is_compressed), stream)


def parse_stream_ref(text: str) -> StreamRef:
    """Return the stream that `text` names; raises ConfigurationError if it is no name and no id."""
    is_number = re.fullmatch(r"[0-9]+", text) is not None
    if is_number and (len(text) > 19 or int(text) > _INT64_MAX or str(int(text)) != text):
        raise ConfigurationError(
            f"{_shown(text)} is no stream id (0 to {_INT64_MAX}, without leading zeros)"
        )
    if not _STREAM_NAME.fullmatch(text) or text in {".", ".."}:
        raise ConfigurationError(
            f"{_shown(text)} is no stream name (1 to {STREAM_NAME_LENGTH_MAX} of the characters"
            " A-Z a-z 0-9 . _ - but not '.', '..' or digits only)"
        )
    return StreamRef(text)


def _shown(text: str) -> str:
    if len(text) > _SHOWN_LENGTH_MAX:
        return repr(text[:_SHOWN_LENGTH_MAX]) + "..."
    return repr(text)


def _read_endpoint(reader: _OptionReader) -> Endpoint | None:
    expected = "host:port of the placement driver"
    text = reader.required_text("endpoint", expected)
    if text is None:
        return None
    try:
        return _parse_endpoint(text)
    except _WrongValueError as error:
        reader.add_fault("endpoint", error.wrong, expected, error.remedy)
        return None


def _parse_endpoint(text: str) -> Endpoint:
    if "@" in text:  # may hold a password, so it is not shown
        raise _WrongValueError("has an '@'", "leave out user and password")
    if "://" in text:
        raise _WrongValueError(f"is the URL {_shown(text)}", "leave out the scheme and '://'")
    if "," in text:
        raise _WrongValueError(f"is the list {_shown(text)}", "name one placement driver")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise _WrongValueError(f"{_shown(text)} has no port", "append ':' and the port")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _WrongValueError(f"has the port {_shown(port)}", "give a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            return Endpoint(str(ipaddress.IPv6Address(host[1:-1])), int(port))
        except ValueError:
            raise _WrongValueError(
                f"has in brackets {_shown(host[1:-1])}, which is no IPv6 address", "correct it"
            ) from None
    if ":" in host:
        raise _WrongValueError(
            f"{_shown(text)} has several colons", "put an IPv6 address in brackets: [::1]:port"
        )
    if len(host) > _HOST_LENGTH_MAX or not _HOST.fullmatch(host):
        raise _WrongValueError(f"has the host {_shown(host)}", "give a host name or address")
    return Endpoint(host, int(port))


def _read_streams(reader: _OptionReader) -> tuple[StreamRef, ...]:
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
            wrong, remedy = f"names {_shown(name)} more than once", "name each stream once"
        else:
            try:
                streams[name] = parse_stream_ref(name)
            except ConfigurationError as error:
                wrong, remedy = f"at position {position}: {error}", "correct the name"
        if wrong:
            is_faulty = True
            reader.add_fault("streams", wrong, expected, remedy)
    return () if is_faulty else tuple(streams.values())


def _read_starting_offsets(
    reader: _OptionReader, streams: tuple[StreamRef, ...], *, streaming: bool
) -> tuple[int, ...]:
    """Return one starting offset per stream; after a fault the result has no meaning."""
    name = "startingOffsets"
    text = reader.maybe_text(name)
    keywords = {"earliest": EARLIEST, "latest": LATEST}
    if text is None:
        return (LATEST if streaming else EARLIEST,) * len(streams)
    if text.lower() in keywords:
        offset = keywords[text.lower()]
        offsets = dict.fromkeys((stream.text for stream in streams), offset)
        is_latest = offset == LATEST
    else:
        offsets = _read_offsets_json(reader, text, streams)
        is_latest = LATEST in offsets.values()
    if is_latest and not streaming:
        wrong = "is latest (-1) in a batch read, which would read nothing"
        reader.add_fault(
            name, wrong, "earliest (-2) or offsets", "start earlier, or use readStream"
        )
    return tuple(offsets.get(stream.text, EARLIEST) for stream in streams)


def _read_offsets_json(
    reader: _OptionReader, text: str, streams: tuple[StreamRef, ...]
) -> dict[str, int]:
    name = "startingOffsets"
    expected = 'earliest, latest or JSON like {"stream": 42}'
    try:
        # An object becomes a tuple of pairs, so that a repeated key is seen.
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, tuple):
        reader.add_fault(name, f"is {_shown(text)}", expected, "correct it")
        return {}
    offsets: dict[str, int] = {}
    for stream, offset in pairs:
        if stream in offsets:
            wrong, remedy = f"names {_shown(stream)} more than once", "name each stream once"
            reader.add_fault(name, wrong, expected, remedy)
        elif type(offset) is not int or not EARLIEST <= offset <= _INT64_MAX:
            wrong = f"has for {_shown(stream)} the value {_shown(str(offset))}"
            remedy = "give a whole number: an offset, -2 (earliest) or -1 (latest)"
            reader.add_fault(name, wrong, expected, remedy)
        offsets[stream] = offset
    names = {stream.text for stream in streams}
    if names:
        expected = "exactly the streams of `streams`, spelled as there"
        for stream in sorted(names - offsets.keys()):
            reader.add_fault(name, f"leaves out {_shown(stream)}", expected, "add it")
        for stream in sorted(offsets.keys() - names):
            near = difflib.get_close_matches(stream, names, n=1)
            remedy = f"did you mean {_shown(near[0])}?" if near else "remove it, or add it there"
            reader.add_fault(name, f"names {_shown(stream)}", expected, remedy)
    return offsets


def _read_records_max(reader: _OptionReader, *, streaming: bool) -> int | None:
    name = "maxRecordsPerTrigger"
    text = reader.maybe_text(name)
    if text is None:
        return None
    if not streaming:
        wrong = "is given in a batch read, which has no triggers"
        reader.add_fault(name, wrong, "it in readStream only", "remove it")
    if re.fullmatch(r"[0-9]{1,19}", text) and 0 < int(text) <= _INT64_MAX:
        return int(text)
    remedy = "give such a number, or leave the option out for no limit"
    reader.add_fault(name, f"is {_shown(text)}", "a whole number above 0", remedy)
    return None


def _read_network_compression(reader: _OptionReader) -> bool:
    text = reader.maybe_text("networkCompression") or "none"
    if text.lower() not in {"none", "zstd"}:
        reader.add_fault(
            "networkCompression",
            f"is {_shown(text)}",
            "none or zstd",
            "give one of them, or leave it out",
        )
    return text.lower() == "zstd"


def _read_isolation_class(reader: _OptionReader) -> str:
    text = reader.maybe_text("isolationClass") or ""
    if text and not _ISOLATION_NAME.fullmatch(text):
        reader.add_fault(
            "isolationClass",
            f"is {_shown(text)}",
            f"1 to {ISOLATION_CLASS_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -",
            "correct it, or leave it out",
        )
    return text


def _read_flag(reader: _OptionReader, name: str, *, default: bool) -> bool:
    text = reader.maybe_text(name)
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        reader.add_fault(name, f"is {_shown(text)}", "true or false", "give one of them")
    return text.lower() == "true"
