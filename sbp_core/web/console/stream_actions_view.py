"""Actions on streams: what their forms mean, and what a question says before one is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sbp_core import limits
from sbp_core.access.rights import is_stream_name
from sbp_core.client import RangeServerInfo, Reach, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.errors import ConfigurationError
from sbp_core.quantities import (
    is_offset,
    parse_duration_ms,
    parse_size,
    quoted,
    show_duration,
    show_retention,
    show_size,
)
from sbp_core.web.console.words import count_text, counted
from sbp_core.wording import listed


def parse_count(text: str) -> int:
    """Return a whole number, 0 or more. Raises ConfigurationError."""
    if not is_offset(text):
        raise ConfigurationError(f"{quoted(text)} is not a whole number, 0 or more")
    return int(text)


def _parse_replicas(text: str) -> int:
    if not is_offset(text) or not 1 <= int(text) <= limits.REPLICAS_MAX:
        raise ConfigurationError(f"{quoted(text)} is not a number from 1 to {limits.REPLICAS_MAX}")
    return int(text)


def _parse_acks(text: str) -> int:
    return parse_count(text) if text else 0


_NUMBERS: Final[tuple[tuple[str, str, str, Callable[[str], int]], ...]] = (
    ("replicas", "replica_count", "replicas", _parse_replicas),
    ("ack_count", "ack_count", "acknowledged by", _parse_acks),
    ("retention", "retention_period_ms", "retention", parse_duration_ms),
    ("retention_size", "retention_bytes", "retention size", parse_size),
)
"""Fields with a number: name, attribute of StreamSpec, title for errors, parser."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The texts of a form about a stream, as they are shown in its fields."""

    name: str = ""
    replicas: str = "1"
    ack_count: str = ""
    retention: str = "0"
    retention_size: str = "0"

    @classmethod
    def of(cls, info: StreamInfo) -> StreamForm:
        """Return the form with what a stream has now."""
        return cls(
            info.name or "",
            str(info.replica_count),
            str(info.ack_count) if info.ack_count else "",
            show_duration(info.retention_period_ms) if info.retention_period_ms else "0",
            show_size(info.retention_bytes) if info.retention_bytes else "0",
        )

    @classmethod
    def read(
        cls, fields: Mapping[str, str], default: StreamForm, *, prefix: str = ""
    ) -> StreamForm:
        """Return the form as it was sent, in fields whose names begin so.

        A field that is missing is as in `default`.
        """
        return cls(
            *(fields.get(prefix + name, text).strip() for name, text in default.fields().items())
        )

    def fields(self, *, prefix: str = "") -> dict[str, str]:
        """Return the texts by the names of the fields, as `read` gets them."""
        return {prefix + name: text for name, text in asdict(self).items()}

    def spec(self) -> StreamSpec:
        """Return the stream to create. Raises ConfigurationError with all faults."""
        spec = StreamSpec(**self.numbers(), name=self._checked_name())
        if spec.ack_count > spec.replica_count:
            replicas = counted(spec.replica_count, "replica")
            raise ConfigurationError(f"acknowledged by: {spec.ack_count} is more than {replicas}")
        return spec

    def update(self, info: StreamInfo) -> StreamUpdate:
        """Return the change of a stream. Raises ConfigurationError, also if nothing changes."""
        now = StreamForm.of(info)
        if self == now:
            raise ConfigurationError("nothing to change: the form has what the stream has")
        values = self.numbers(unlike=now)
        if values.get("ack_count") == 0:
            values["ack_count"] = values.get("replica_count", info.replica_count) // 2 + 1
        name = self._checked_name() if self.name != now.name else None
        return StreamUpdate(info.stream_id, name=name, **values)

    def numbers(self, *, unlike: StreamForm | None = None) -> dict[str, Any]:
        """Return what the fields but the name mean, by the names of StreamSpec.

        Those that are as in `unlike` are left out. Raises ConfigurationError with all faults.
        """
        values: dict[str, Any] = {}
        faults = []
        for name, attribute, title, parse in _NUMBERS:
            text = getattr(self, name)
            if unlike is not None and text == getattr(unlike, name):
                continue
            try:
                values[attribute] = parse(text)
            except ConfigurationError as error:
                faults.append(f"{title}: {error}")
        if faults:
            raise ConfigurationError("; ".join(faults))
        return values

    def _checked_name(self) -> str:
        if not self.name:
            raise ConfigurationError("the stream needs a name")
        if not is_stream_name(self.name):
            raise ConfigurationError(
                f"{quoted(self.name)} cannot name a stream: use 1 to"
                f" {limits.STREAM_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -, and not digits only"
            )
        return self.name


def creation_facts(spec: StreamSpec) -> list[str]:
    """Return what a stream will be, a sentence each."""
    acks = f", acknowledged by {spec.ack_count}" if spec.ack_count else ""
    return [
        f"Stream {spec.name} is created.",
        f"Each record has {counted(spec.replica_count, 'replica')}{acks}.",
        f"Records are kept: {show_retention(spec.retention_period_ms, spec.retention_bytes)}.",
    ]


def maybe_refusal(spec: StreamSpec, servers: Sequence[RangeServerInfo]) -> str | None:
    """Return why too few range servers can have ranges now for a stream to be created."""
    needed = spec.ack_count or spec.replica_count // 2 + 1
    usable = sum(each.is_usable for each in servers)
    if usable >= needed:
        return None
    return (
        f"It cannot be created now: {counted(needed, 'range server')} would have to store each"
        f" record, and {counted(usable, 'range server')} can have new ranges. Start more, or ask"
        " for fewer replicas."
    )


def check_is_new(name: str, found: Sequence[StreamInfo]) -> None:
    """Raise ConfigurationError if there is a stream of this name; `found` are those looked up."""
    if found:
        raise ConfigurationError(f"there is a stream {name} (id {found[0].stream_id}) already")


def update_facts(info: StreamInfo, change: StreamUpdate) -> list[str]:
    """Return what a change of a stream means, a sentence each."""
    facts = []
    if change.name is not None:
        facts.append(
            f"Its name is {change.name}: who uses the name {info.label} no longer finds it."
        )
    if change.replica_count is not None or change.ack_count is not None:
        count = change.replica_count or info.replica_count
        acks = f", acknowledged by {change.ack_count}" if change.ack_count else ""
        facts.append(
            f"Records appended from now on have {counted(count, 'replica')}{acks}: the stream goes"
            " on in a new range."
        )
    period_ms, size_bytes = change.retention_period_ms, change.retention_bytes
    if period_ms is not None or size_bytes is not None:
        kept_ms = info.retention_period_ms if period_ms is None else period_ms
        kept_bytes = info.retention_bytes if size_bytes is None else size_bytes
        facts.append(
            f"Records are kept: {show_retention(kept_ms, kept_bytes)}; now it is"
            f" {show_retention(info.retention_period_ms, info.retention_bytes)}."
        )
        if _is_less(kept_ms, info.retention_period_ms) or _is_less(
            kept_bytes, info.retention_bytes
        ):
            facts.append("Records that are beyond the new limit are removed permanently.")
    return facts


def trim_facts(at: Reach, offset: int) -> list[str]:
    """Return what a trim removes, a sentence each. Raises ConfigurationError if it is nothing."""
    if offset <= at.start_offset:
        raise ConfigurationError(
            "nothing to trim: the first record of the stream has offset"
            f" {count_text(at.start_offset)}"
        )
    removed = counted(offset - at.start_offset, "record")
    return [
        f"{removed} below offset {count_text(offset)} removed permanently.",
        "Readers below it get an error with the new start of the stream.",
    ]


def deletion_facts(info: StreamInfo, at: Reach, groups: Sequence[str]) -> list[str]:
    """Return what a deletion removes, a sentence each; `groups` have cursors in the stream."""
    held = counted(at.readable_end - at.start_offset, "record")
    least = "" if at.next_offset is not None else "at least "
    facts = [f"Stream {info.label} and its records, {least}{held}, removed permanently."]
    if groups:
        facts.append(f"Cursors in it are lost: of {listed(groups)}.")
    return facts


def _is_less(limit: int, limit_now: int) -> bool:
    """Whether a retention keeps less than before; 0 is no limit."""
    return limit != 0 and (limit_now == 0 or limit < limit_now)
