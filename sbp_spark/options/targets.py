"""Where rows go: which streams, how they are chosen, and whether missing ones are created."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sbp_core.client import StreamSpec
from sbp_core.errors import ConfigurationError
from sbp_spark.options.reading import OptionReader, shown
from sbp_spark.options.streams import StreamRef, parse_stream_ref, read_stream_list

_REPLICAS_MAX: Final = 127
_DEAD_LETTER: Final = "deadletter:"


class Routing(Enum):
    """Values of the option `routing`: how a row gets one of several streams."""

    KEY = "key"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True, slots=True)
class Targets:
    """The streams that options name; with none of them each row names its own."""

    refs: tuple[StreamRef, ...] = ()
    routing: Routing = Routing.KEY


@dataclass(frozen=True, slots=True)
class Creation:
    """With what missing streams are created; 0 keeps records for ever, or as many as there are."""

    replica_count: int = 1
    retention_period_ms: int = 0
    retention_bytes: int = 0

    def spec(self, name: str) -> StreamSpec:
        """Return the stream to create."""
        return StreamSpec(name, self.replica_count, self.retention_period_ms, self.retention_bytes)


class OnBadRecord(Enum):
    """What happens to a row that cannot be written."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "deadletter"


@dataclass(frozen=True, slots=True)
class BadRecordPolicy:
    """What happens to rows that cannot be written; `dead_letters` is the stream for them."""

    action: OnBadRecord = OnBadRecord.FAIL
    dead_letters: StreamRef | None = None


def read_targets(reader: OptionReader) -> Targets:
    """Return where rows go."""
    routing = Routing(reader.choice("routing", [each.value for each in Routing], Routing.KEY.value))
    if reader.is_given("stream") and reader.is_given("streams"):
        remedy = "keep one of them"
        reader.add_fault("stream", "is given beside streams", "one of the two", remedy)
    if reader.is_given("routing") and not reader.is_given("streams"):
        wrong = "is given without streams, so there is nothing to choose among"
        reader.add_fault("routing", wrong, "several streams", "add streams, or remove it")
    if reader.is_given("streams"):
        return Targets(read_stream_list(reader, "streams").refs, routing)
    ref = _maybe_ref(reader, "stream", reader.maybe_text("stream"))
    return Targets((ref,) if ref else ())


def read_creation(reader: OptionReader) -> Creation | None:
    """Return with what missing streams are created, None if they are not."""
    is_creating = reader.flag("createStreams", default=False)
    details = ("createReplicas", "createRetentionPeriod", "createRetentionBytes")
    for name in details if not is_creating else ():
        if reader.is_given(name):
            wrong = "is given without createStreams=true, so no stream is created"
            reader.add_fault(name, wrong, "both", "add createStreams, or remove it")
    replica_count = reader.maybe_count(details[0]) or 1
    if replica_count > _REPLICAS_MAX:
        expected = f"1 to {_REPLICAS_MAX} replicas"
        reader.add_fault(details[0], f"is {replica_count}", expected, "correct it")
    creation = Creation(
        replica_count,
        reader.maybe_duration_ms(details[1]) or 0,
        reader.maybe_size_bytes(details[2]) or 0,
    )
    return creation if is_creating else None


def read_bad_record_policy(reader: OptionReader) -> BadRecordPolicy:
    """Return what happens to rows that cannot be written."""
    text = reader.maybe_text("onBadRecord") or OnBadRecord.FAIL.value
    if text.lower().startswith(_DEAD_LETTER):
        ref = _maybe_ref(reader, "onBadRecord", text[len(_DEAD_LETTER) :].strip())
        return BadRecordPolicy(OnBadRecord.DEAD_LETTER, ref)
    if text.lower() in {OnBadRecord.FAIL.value, OnBadRecord.SKIP.value}:
        return BadRecordPolicy(OnBadRecord(text.lower()))
    expected = "fail, skip, or deadletter:STREAM"
    reader.add_fault("onBadRecord", f"is {shown(text)}", expected, "give one of them")
    return BadRecordPolicy()


def _maybe_ref(reader: OptionReader, option: str, text: str | None) -> StreamRef | None:
    if text is None:
        return None
    try:
        return parse_stream_ref(text)
    except ConfigurationError as error:
        reader.add_fault(option, f"names no stream: {error}", "one name or id", "correct it")
        return None
