"""A stream as values: its facts, and the history of its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sbp_core.client import Reach, SchemaVersion, StreamInfo
from sbp_core.operating.samples import Samples
from sbp_core.records import Change, compare_schemas, field_text
from sbp_core.records.stream_schema import type_text
from sbp_core.web.console.streams_view import retention_text

_STYLES: Final = {Change.ADDED: "good", Change.WIDENED: "warn", Change.RELAXED: "warn"}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The facts of a stream. `is_complete`: its end is known, else it may have more records."""

    info: StreamInfo
    start: int
    end: int
    is_complete: bool
    rate: float | None
    replicas: str
    retention: str
    created: str

    @property
    def record_count(self) -> int:
        """The records that are known to be there."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that reads a stream, and the records that it is behind."""

    group: str
    lag: int


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column of a schema in words."""

    name: str
    kind: str
    null: str


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A difference between two versions: `text` begins with its sign."""

    style: str
    text: str


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A version of a schema, and how it differs from the version before."""

    version: int
    registered: str
    changes: tuple[SchemaChange, ...]


def make_facts(info: StreamInfo, at: Reach, samples: Samples) -> StreamFacts:
    """Return the facts of a stream."""
    replicas = str(info.replica_count)
    if info.replica_count > 1:
        replicas += f" (acknowledged by {info.ack_count})"
    return StreamFacts(
        info,
        at.start_offset,
        at.readable_end,
        at.next_offset is not None,
        samples.rates().get(info.stream_id),
        replicas,
        retention_text(info),
        moment_text(info.created_at_ms),
    )


def make_readers(samples: Samples, stream_id: int) -> list[Reader]:
    """Return the groups with a cursor in a stream, the one that is most behind first."""
    if not samples.lags:
        return []
    found = [
        Reader(group, lag)
        for (group, read_id), lag in samples.lags[-1].records.items()
        if read_id == stream_id
    ]
    return sorted(found, key=lambda each: (-each.lag, each.group))


def make_columns(version: SchemaVersion) -> list[ColumnText]:
    """Return the columns of a version."""
    return [
        ColumnText(field.name, type_text(field.type), "yes" if field.nullable else "no")
        for field in version.schema.arrow
    ]


def make_history(versions: Sequence[SchemaVersion]) -> list[SchemaStep]:
    """Return the versions of a schema, the newest first."""
    steps = [
        SchemaStep(
            version.version,
            moment_text(version.registered_at_ms),
            compare_versions(before, version),
        )
        for before, version in zip((None, *versions), versions, strict=False)
    ]
    return steps[::-1]


def compare_versions(
    before: SchemaVersion | None, after: SchemaVersion
) -> tuple[SchemaChange, ...]:
    """Return how a version differs from an earlier one; without one, all of it is new."""
    if before is None:
        columns = [f"+ column {field_text(field)}" for field in after.schema.arrow]
        return tuple(SchemaChange(_STYLES[Change.ADDED], each) for each in columns)
    found = compare_schemas(before.schema, after.schema).differences
    return tuple(SchemaChange(_STYLES.get(each.change, "bad"), str(each)) for each in found)


def moment_text(time_ms: int) -> str:
    """Return a time, ms since 1970 UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
