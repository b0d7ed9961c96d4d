"""The values that the placement driver stores, and their tables on the wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.access.rights import is_stream_name
from sbp_core.errors import NotFoundError, invalid
from sbp_core.wire.headers import RangeServer, ReplicaServer, Stream, StreamProperty, StreamRange
from sbp_core.wire.status import shown

_GROUP: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.GROUP_NAME_LENGTH_MAX}}}")

_FIRST_EPOCH: Final = 0

NO_SEQ: Final = -1
"""The `end_seq` of a range that is open, or has one replica."""
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
NO_CURSOR: Final = -1
"""The next offset of a cursor that does not exist, or that a change deletes."""


RangeKey = tuple[int, int]
"""(stream id, range index)."""
BEFORE_RANGES: Final[RangeKey] = (-1, -1)
"""Before every range."""


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream to be created, with the servers of its first range (primary first)."""

    name: str | None
    replica_count: int
    ack_count: int
    retention_period_ms: int
    server_ids: tuple[int, ...]
    retention_bytes: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream. A retention of 0 keeps all records: `period_ms` by age, `bytes` by size."""

    stream_id: int
    name: str | None
    replica_count: int
    ack_count: int
    retention_period_ms: int
    created_at_ms: int
    retention_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """A range, [start_offset, end_offset); open while `end_offset` is None. Primary first.

    `end_seq` and `end_digest` are the entries of a sealed range with several replicas.
    """

    stream_id: int
    range_index: int
    start_offset: int
    end_offset: int | None
    ack_count: int
    server_ids: tuple[int, ...]
    created_at_ms: int = -1
    """When the stream was created."""
    end_seq: int = NO_SEQ
    end_digest: bytes = b""

    @property
    def key(self) -> RangeKey:
        """The stream and the index."""
        return self.stream_id, self.range_index


class SealedRange(NamedTuple):
    """Where a range ended, and its writers as its server reports them; empty: it had none."""

    stream_id: int
    range_index: int
    end_offset: int
    writers: bytes = b""
    end_seq: int = NO_SEQ
    end_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Copies:
    """A stream whose open range has other replicas than the stream asks for.

    `placed_count` is 0 while the stream has no open range.
    """

    stream_id: int
    wanted_count: int
    placed_count: int
    range_index: int

    @property
    def missing_count(self) -> int:
        """How many replicas are missing; 0 if there are too many, or only `ack_count` differs."""
        return max(0, self.wanted_count - self.placed_count)


@dataclass(frozen=True, slots=True)
class RangeServerRecord:
    """A range server and where clients reach it, host:port."""

    server_id: int
    address: str


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """How far a consumer group has read a stream: the offset that it reads next."""

    stream_id: int
    next_offset: int
    committed_at_ms: int


class CursorChange(NamedTuple):
    """A cursor to set, or with NO_CURSOR to forget, if its offset is `expected_offset` now.

    NO_CURSOR expects that the cursor does not exist, None accepts any offset.
    """

    stream_id: int
    next_offset: int
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A consumer group that has cursors, and when it committed the latest."""

    name: str
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A version of a stream's schema, an Arrow IPC schema message; the first version is 1."""

    stream_id: int
    version: int
    fingerprint: str
    schema: bytes
    registered_at_ms: int


@dataclass(frozen=True, slots=True)
class StreamChange:
    """The change of a stream. None keeps its name, its retention, or its replicas.

    `properties` are those to set, or to remove where None. Nothing is changed unless the stream has
    the properties that are `expected`, and has none where None.
    """

    stream_id: int
    name: str | None
    retention_period_ms: int | None
    retention_bytes: int | None = None
    replica_count: int | None = None
    ack_count: int | None = None
    properties: Mapping[str, str | None] = field(default_factory=dict)
    expected: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogMark:
    """A range server's log: its id, empty while it has none, and how far it is synced."""

    server_id: int
    log_id: str
    position: int


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A live range server as placement sees it; None where it never reported its load.

    Servers with the same `rack` may fail together; empty if the server names none.
    """

    server_id: int
    disk_free_bytes: int | None = None
    append_rate: int | None = None
    rack: str = ""
    missing_replica_count: int = 0
    """Ranges led there of which a replica lacks entries."""
    is_unsteady: bool = False
    """Whether it was silent again and again lately."""


@dataclass(frozen=True, slots=True)
class HostedCounts:
    """How many ranges a server has: open ones as primary and as secondary, and sealed ones.

    `unreplicated` of the sealed ones are on no other server.
    """

    led: int = 0
    copied: int = 0
    sealed: int = 0
    unreplicated: int = 0


def check_stream_name(name: str) -> None:
    """Raise InvalidRequestError unless `name` can name a stream."""
    if is_stream_name(name):
        return
    raise invalid(
        f"{shown(name)} cannot name a stream: use 1 to {limits.STREAM_NAME_LENGTH_MAX} of"
        " A-Z a-z 0-9 . _ - (not digits only, not '.' or '..')"
    )


def check_group_name(name: str) -> None:
    """Raise InvalidRequestError unless `name` can name a consumer group."""
    if _GROUP.fullmatch(name):
        return
    raise invalid(
        f"{shown(name)} cannot name a consumer group: use 1 to {limits.GROUP_NAME_LENGTH_MAX} of"
        " A-Z a-z 0-9 . _ -"
    )


def no_stream(stream_id: int) -> NotFoundError:
    """Return the error for a stream that does not exist."""
    return NotFoundError.of(f"stream {stream_id} does not exist (or was deleted)")


def stream_table(stream: StreamRecord, properties: Mapping[str, str] = NO_PROPERTIES) -> Stream:
    """Return the table of a stream."""
    return Stream(
        stream_id=stream.stream_id,
        replica_nums=stream.replica_count,
        retention_period_ms=stream.retention_period_ms,
        ack_count=stream.ack_count,
        name=stream.name,
        created_at_ms=stream.created_at_ms,
        retention_bytes=stream.retention_bytes,
        properties=tuple(StreamProperty(*each) for each in properties.items()),
    )


def range_table(stream_range: RangeRecord, addresses: Mapping[int, str]) -> StreamRange:
    """Return the table of a range. The end of an open one is not known here."""
    start, end = stream_range.start_offset, stream_range.end_offset
    return StreamRange(
        stream_id=stream_range.stream_id,
        range_index=stream_range.range_index,
        start_offset=start,
        end_offset=-1 if end is None else end,
        next_offset=start if end is None else end,
        servers=tuple(
            ReplicaServer(server=server_table(server_id, addresses), is_primary=position == 0)
            for position, server_id in enumerate(stream_range.server_ids)
        ),
        epoch=_FIRST_EPOCH,
        replica_count=len(stream_range.server_ids),
        ack_count=stream_range.ack_count,
        created_at_ms=stream_range.created_at_ms,
        end_seq=stream_range.end_seq,
        end_digest=stream_range.end_digest,
    )


def server_table(server_id: int, addresses: Mapping[int, str]) -> RangeServer:
    """Return the table of a range server; its address is empty when it never announced one."""
    return RangeServer(server_id=server_id, advertise_addr=addresses.get(server_id, ""))
