"""Public values: the arguments and results of a client, independent of the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from numbers import Integral
from typing import Any, Final, NamedTuple

import msgspec

from sbp_core import limits
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.records.envelope import Envelope
from sbp_core.records.splitting import split_envelopes
from sbp_core.records.stream_schema import StreamSchema
from sbp_core.wire.headers import BatchFilter, Projection

EARLIEST: Final = -2
"""As a fetch offset: the first offset that the stream still has."""
LATEST: Final = -1
"""As a fetch offset: the stream's tail."""

NO_CURSOR: Final = -1
"""As the next offset of a cursor to commit: forget the cursor."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's metadata.

    `retention_period_ms` 0 keeps records for ever. `retention_bytes` bounds the bytes that each
    range server keeps of the stream; 0 is no limit. A record is acknowledged when `ack_count`
    replicas have stored it; 0 if the server does not report the count.
    """

    stream_id: int
    name: str | None
    replica_count: int
    retention_period_ms: int
    created_at_ms: int
    retention_bytes: int = 0
    ack_count: int = 0

    @property
    def label(self) -> str:
        """The name of the stream, or its id if it has no name. Commands and options accept both."""
        return self.name or str(self.stream_id)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream to create. The name, if there is one, is unique in the cluster.

    A record is acknowledged when `ack_count` replicas have stored it; 0 stands for the majority.
    """

    name: str | None
    replica_count: int = 1
    retention_period_ms: int = 0
    retention_bytes: int = 0
    ack_count: int = 0
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """A change of the stream with this id or name; None leaves a field as it is.

    A new `replica_count` makes `ack_count` the majority unless it is given. A property None is
    removed. Nothing is changed unless the stream has the `expected_properties`; an expected None
    stands for a property that is absent.
    """

    stream: int | str
    name: str | None = None
    retention_period_ms: int | None = None
    retention_bytes: int | None = None
    replica_count: int | None = None
    ack_count: int | None = None
    properties: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    expected_properties: Mapping[str, str | None] = field(default_factory=dict, hash=False)


def plain_int(value: Any) -> Any:
    """Return an integer of another library, such as numpy, as an int; other values as they are."""
    is_foreign = isinstance(value, Integral) and not isinstance(value, int)
    return int(value) if is_foreign else value


def check_types(given: StreamSpec | StreamUpdate) -> None:
    """Raise ConfigurationError if the value of a field does not have the declared type."""
    try:
        values = {each.name: plain_int(getattr(given, each.name)) for each in fields(given)}
        msgspec.convert(values, type(given))
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{type(given).__name__}: {error}; it is {given!r:.300}"
        ) from error


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """A piece of a stream, [start_offset, end_offset); `end_offset` is None while it is open.

    `next_offset` is the end that the placement driver knows, and may be old. `servers` are
    endpoints ("host:port"), the primary first.
    """

    stream_id: int
    range_index: int
    start_offset: int
    end_offset: int | None
    next_offset: int
    servers: tuple[str, ...]

    @property
    def is_replicated(self) -> bool:
        """Whether more servers than one have the range."""
        return len(self.servers) > 1

    @property
    def is_open_and_replicated(self) -> bool:
        """Whether another range follows on other servers if the primary is lost."""
        return self.is_replicated and self.end_offset is None

    @property
    def is_sealed_and_replicated(self) -> bool:
        """Whether any of several servers can be read from."""
        return self.is_replicated and self.end_offset is not None

    def is_ahead_of(self, offset: int) -> bool:
        """Whether the range may have records from an offset on."""
        return self.end_offset is None or self.end_offset > offset


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The offsets [start_offset, next_offset) that a stream holds."""

    stream_id: int
    start_offset: int
    next_offset: int


class StoreCommit(NamedTuple):
    """A commit of the placement driver's metadata: a growing number in one `life` of the store.

    Restoring a backup begins a new life, which uses the numbers again: only commits of the same
    life can be compared. Keep a commit, and ask `Client.has_commit` later to detect a restore.
    """

    number: int
    life: str

    @property
    def is_plausible(self) -> bool:
        """Whether a placement driver may have reported the commit."""
        is_word = self.life.isascii() and self.life.isprintable() and " " not in self.life
        is_short = 0 < len(self.life) <= limits.STORE_LIFE_LENGTH_MAX
        return is_word and is_short and 0 <= self.number < 2**63


class MetadataChanges(NamedTuple):
    """The revision of the placement driver's metadata, and what changed since an earlier revision.

    `stream_ids` are the streams that were created, changed, moved, trimmed or deleted since. None
    stands for all streams: the placement driver does not know which ones changed.
    """

    revision: int
    stream_ids: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class UnavailableRange:
    """The offsets [start_offset, end_offset) of a stream that cannot be read now, and why.

    `end_offset` is None for the open range at the end of the stream. `server` is the endpoint that
    did not answer, None if no server hosts the range.
    """

    start_offset: int
    end_offset: int | None
    server: str | None
    error: SbpError


@dataclass(frozen=True, slots=True)
class Reach:
    """The part of a stream that can be read now: [start_offset, next_offset) minus `unavailable`.

    The unavailable ranges are in the order of their offsets. `next_offset` is None if the server
    of the open range is unavailable: the tail is unknown. `start_offset` comes from the placement
    driver then, and the first records may have been trimmed.
    """

    stream_id: int
    start_offset: int
    next_offset: int | None
    unavailable: tuple[UnavailableRange, ...] = ()

    @property
    def readable_end(self) -> int:
        """The end of the stream, or the start of the last range if its end is unknown."""
        return self.unavailable[-1].start_offset if self.next_offset is None else self.next_offset


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """The cursor of a consumer group in a stream: the group reads `next_offset` next."""

    stream_id: int
    next_offset: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group, and the time of its latest commit, in ms (UTC).

    The time is None if the group has members and no cursors.
    """

    group: str
    committed_at_ms: int | None


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a stream's schema, from 1 on, and when it was registered, in ms (UTC)."""

    stream_id: int
    version: int
    schema: StreamSchema
    registered_at_ms: int


@dataclass(frozen=True, slots=True)
class AppendItem:
    """One encoded record batch for one stream."""

    stream_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The offset of an appended batch's first record, and the server's time in ms (UTC).

    The offset is -1 for a batch that was staged in a transaction.
    """

    stream_id: int
    base_offset: int
    append_time_ms: int


@dataclass(frozen=True, slots=True)
class TxnPart:
    """The records that a transaction has staged in one range, in `batch_count` batches.

    `Transaction.parts` returns the parts for `commit_txn` and `abort_txns`. The placement driver
    refuses a commit of more batches than it can publish at once; a `batch_count` of -1, for an
    unknown number, skips that check.
    """

    txn_id: str
    stream_id: int
    range_index: int
    record_count: int
    batch_count: int = -1


@dataclass(frozen=True, slots=True)
class TxnDecision:
    """The final decision about a batch of a producer: what `commit_txn` returns.

    `is_replay`: an earlier call has decided the batch, perhaps about other records. Compare the
    `record_count` and `digest` of the decision; they are None and empty if the decision is too old
    to be kept. `is_published`: all records are visible; otherwise they will be. `lost` are parts
    that a range server lost and an operator gave up (`give_up_txn`): they will never be visible.
    """

    is_replay: bool
    is_published: bool
    record_count: int | None
    digest: bytes
    lost: tuple[TxnPart, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnLoss:
    """The parts of a committed batch that were given up: what `give_up_txn` returns.

    The parts will never be visible. The rest of the batch is visible if `is_published`; otherwise
    `waits_for` is the reason. `record_count` is the count of the decision, None if the decision is
    too old to be kept.
    """

    parts: tuple[TxnPart, ...]
    is_published: bool
    record_count: int | None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class TxnInfo:
    """The state of a transaction, or of a producer's batch of transactions.

    `state`: "staged" at the range server `server`, "publishing", "published", "stuck" (it cannot be
    published as it was committed), "lost" (parts of it, the rest is published), or "aborted".
    `parts` are staged or not published yet. `lost` are the parts that a range server lost and
    `give_up_txn` gave up: they will never be visible. Times in ms (UTC).
    """

    state: str
    parts: tuple[TxnPart, ...]
    producer: str | None = None
    batch_number: int | None = None
    record_count: int | None = None
    digest: bytes = b""
    decided_at_ms: int | None = None
    staged_at_ms: int | None = None
    server: str | None = None
    lost: tuple[TxnPart, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchItem:
    """The part of a stream to read: from `fetch_offset` (or EARLIEST, LATEST) up to `end_offset`.

    `end_offset` is exclusive, None for no bound. `max_bytes` bounds the answer, but one whole
    batch is always returned. `projections` (of `KeptColumns`) allow the server to leave out other
    columns; batches may still have all columns. `filters` (of `batch_filter`) allow the server to
    send only the head of a batch without a row within the bounds (`Envelope.is_skipped`); such
    batches may still come whole.
    """

    stream_id: int
    fetch_offset: int
    end_offset: int | None
    max_bytes: int
    projections: tuple[Projection, ...] = ()
    filters: tuple[BatchFilter, ...] = ()


class ReceivedBatches(NamedTuple):
    """Whole record batches of one stream, in order. The next fetch goes on at `next_offset`.

    They are encoded in `payload`, or were made of a table, and are `decoded`: see `Envelope.rows`.
    """

    payload: memoryview
    next_offset: int
    decoded: tuple[Envelope, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the batches; 0 if there is none."""
        return len(self.payload) + sum(each.length_bytes for each in self.decoded)

    def envelopes(self) -> Iterator[Envelope]:
        """Return the batches. Raises RecordBatchError at the first that cannot be read."""
        return chain(split_envelopes(self.payload), self.decoded)


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """The answer to the item at `item_index` of a fetch: whole batches, or `error`.

    The first batch may begin before the fetch offset, and the last one may pass the end offset:
    drop these records. No batches and no error mean that there was nothing to read in time.
    """

    item_index: int
    stream_id: int
    batches: ReceivedBatches
    error: SbpError | None

    @property
    def next_offset(self) -> int:
        """The offset at which the next fetch goes on."""
        return self.batches.next_offset

    @property
    def payload(self) -> memoryview:
        """The bytes of the batches that are encoded."""
        return self.batches.payload

    @property
    def size_bytes(self) -> int:
        """Size of the batches; 0 if there is none."""
        return self.batches.size_bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group, and the streams that it is to read, by id, as of a generation.

    The rules for members are in the protocol, "Consumer groups". In short: read only `stream_ids`,
    each from its cursor; send a heartbeat every third of `session_timeout_ms`; stop reading when
    the session timeout has passed since the last answered heartbeat, and on MemberUnknownError.
    """

    group: str
    member_id: str
    generation: int
    stream_ids: tuple[int, ...]
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group, which reads `stream_ids`, and has to give up `revoked_ids`.

    `patterns` are names of streams, and prefixes followed by `*`. A member without a `subject` may
    read all streams. The times are in ms.
    """

    member_id: str
    patterns: tuple[str, ...]
    stream_ids: tuple[int, ...]
    revoked_ids: tuple[int, ...]
    session_timeout_ms: int
    handover_timeout_ms: int
    subject: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members by id; without any, the generation is -1."""

    group: str
    generation: int
    members: tuple[MemberInfo, ...]

    @property
    def state(self) -> str:
        """The state: `empty`, `stable`, or `rebalancing` if a member has to give up a stream."""
        if not self.members:
            return "empty"
        is_moving = any(each.revoked_ids for each in self.members)
        return "rebalancing" if is_moving else "stable"

    @property
    def holders(self) -> dict[int, str]:
        """The member that holds each stream, by the id of the stream."""
        return {
            stream_id: each.member_id
            for each in self.members
            for stream_id in (*each.stream_ids, *each.revoked_ids)
        }
