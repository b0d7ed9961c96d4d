"""Generated from schemas/*.fbs by schemas/generate.py. Do not edit."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from sbp_core.wire.flat import Field, Kind, Table, Vector, fields_of, repr_without
from sbp_core.wire.flat.kinds import BOOL, BYTES, I8, I16, I32, I64, TEXT
from sbp_core.wire.flat.writer import MISFIT, Writer, WriteValue, put_u32


class ClientRole(enum.IntEnum):
    UNSPECIFIED = 0
    PD = 1
    RANGE_SERVER = 2
    CLIENT = 3


class SealCause(enum.IntEnum):
    REQUESTED = 0
    PRIMARY_SILENT = 1
    REPLICA_LACKING = 2


class CheckRightsRequest(Struct, frozen=True, gc=False):
    """CHECK_RIGHTS: which rights a subject has on streams, for a server that decides for `lease_ms`. The subject stages under `txn_ids`."""

    timeout_ms: int = 0
    subject: str | None = None
    stream_ids: tuple[int, ...] = ()
    txn_ids: tuple[str, ...] = ()


class DescribeCursorsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    group: str | None = None
    stream_ids: tuple[int, ...] = ()


class DescribeGroupRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    group: str | None = None


class DescribeSchemasRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    stream_ids: tuple[int, ...] = ()
    newest_only: bool = False


class DescribeServersRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0


class DescribeStreamsRequest(Struct, frozen=True, gc=False):
    """Results come in the order of `stream_ids`, then of `names`."""

    timeout_ms: int = 0
    stream_ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    all_streams: bool = False
    with_properties: bool = False


class DescribeTxnsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    producer: str | None = None


class DrainServersRequest(Struct, frozen=True, gc=False):
    """DRAIN_SERVERS: range servers are to have no ranges any more, or may have some again."""

    timeout_ms: int = 0
    server_ids: tuple[int, ...] = ()
    is_cancelled: bool = False


class EndTxnInfo(Struct, frozen=True, gc=False):
    """END_TXN: publish (in this order) or drop the batches staged under the named transactions."""

    stream_id: int = -1
    request_index: int = 0
    txn_ids: tuple[str, ...] = ()
    commit: bool = False
    range_index: int = -1
    record_count: int = -1


class Feature(Struct, frozen=True, gc=False):
    """A capability offered on the first HEARTBEAT; absent from the answer means declined."""

    name: str | None = None
    data: bytes = b""

    def __repr__(self) -> str:
        """Return the fields, but for secrets."""
        return repr_without(self, ["data"])


class Grant(Struct, frozen=True, gc=False):
    """LIST_GRANTS / CHANGE_GRANTS: what subjects may do with the streams, or groups, whose names match a pattern."""

    subject: str | None = None
    right: str | None = None
    pattern: str | None = None


class GroupHeartbeatRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    group: str | None = None
    member_id: str | None = None
    generation: int = -1
    stream_ids: tuple[int, ...] = ()


class GroupMember(Struct, frozen=True, gc=False):
    """DESCRIBE_GROUP: the members of a consumer group."""

    member_id: str | None = None
    patterns: tuple[str, ...] = ()
    session_timeout_ms: int = 0
    handover_timeout_ms: int = 0
    stream_ids: tuple[int, ...] = ()
    revoked_ids: tuple[int, ...] = ()
    subject: str | None = None


class IdAllocationRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    host: str | None = None


class JoinGroupRequest(Struct, frozen=True, gc=False):
    """JOIN_GROUP / GROUP_HEARTBEAT / LEAVE_GROUP: a member of a consumer group, and the streams that it is to read, or has."""

    timeout_ms: int = 0
    group: str | None = None
    member_id: str | None = None
    patterns: tuple[str, ...] = ()
    session_timeout_ms: int = 0
    handover_timeout_ms: int = 0


class KeyBounds(Struct, frozen=True, gc=False):
    """The demand on a column of each row that is wanted: a value from `least` on, or null."""

    column: str | None = None
    least: bytes = b""
    most: bytes = b""
    has_most: bool = False
    takes_null: bool = False


class LeaveGroupRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    group: str | None = None
    member_id: str | None = None


class ListGrantsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    subject: str | None = None


class LookupOffsetInfo(Struct, frozen=True, gc=False):
    """LOOKUP_OFFSETS: the first record from `start_offset` on that was appended at `timestamp_us` (UTC) or later."""

    stream_id: int = -1
    request_index: int = 0
    timestamp_us: int = 0
    start_offset: int = 0


class PlacementDriverNode(Struct, frozen=True, gc=False):
    name: str | None = None
    advertise_addr: str | None = None
    is_leader: bool = False


class Projection(Struct, frozen=True, gc=False):
    """The parts of an Arrow message that are wanted: a bit for each, from the lowest of the first byte on."""

    schema: str | None = None
    nodes: bytes = b""
    buffers: bytes = b""
    kept: str | None = None


class RangeId(Struct, frozen=True, gc=False):
    stream_id: int = -1
    range_index: int = -1
    end_offset: int = -1


class RangeMove(Struct, frozen=True, gc=False):
    """MOVE_RANGES: ranges are to be on these servers, the primary first. Index -1 is the open range: it ends, and the next one is there."""

    stream_id: int = -1
    range_index: int = -1
    server_ids: tuple[int, ...] = ()


class RangeServer(Struct, frozen=True, gc=False):
    server_id: int = -1
    advertise_addr: str | None = None
    rack: str | None = None


class ReadEntriesRequest(Struct, frozen=True, gc=False):
    """READ_ENTRIES: entries of a range behind the first `after_seq` ones, from any replica that has them. With `from_offset` the records of a settled range from there on, or what is staged in it."""

    timeout_ms: int = 0
    stream_id: int = -1
    range_index: int = -1
    after_seq: int = -1
    upto_seq: int = -1
    bytes_max: int = 0
    from_offset: int = -1


class ReplicatedRange(Struct, frozen=True, gc=False):
    """REPLICATE: the next entries of ranges, from their primary to a secondary. Without entries: what is committed."""

    stream_id: int = -1
    range_index: int = -1
    before_seq: int = -1
    before_digest: bytes = b""
    entries_length: int = 0
    committed_seq: int = -1
    committed_offset: int = -1


class StagedParts(Struct, frozen=True, gc=False):
    """The parts that one transaction has staged, column by column: a decision may name very many."""

    txn_id: str | None = None
    stream_ids: tuple[int, ...] = ()
    range_indexes: tuple[int, ...] = ()
    record_counts: tuple[int, ...] = ()
    batch_counts: tuple[int, ...] = ()


class Status(Struct, frozen=True, gc=False):
    """Outcome of a request or of one item of a batch. `code` 0 is success."""

    code: int = 0
    message: str | None = None
    detail: bytes = b""
    handler_duration_us: int = -1


class StreamProperty(Struct, frozen=True, gc=False):
    """A property of a stream; without `value`, that it has none, or is to have none."""

    key: str | None = None
    value: str | None = None


class TakeCutRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0


class TrimmedStream(Struct, frozen=True, gc=False):
    stream_id: int = -1
    trim_offset: int = 0


class TxnPart(Struct, frozen=True, gc=False):
    """COMMIT_TXN: the decision record of (producer, batch_number). The first one wins for ever."""

    txn_id: str | None = None
    stream_id: int = -1
    record_count: int = 0
    range_index: int = -1
    batch_count: int = -1


class AppendResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    request_index: int = 0
    base_offset: int = 0
    stream_append_time_ms: int = 0
    status: Status | None = None


class BatchFilter(Struct, frozen=True, gc=False):
    """The demands on each row of the batches of a schema."""

    schema: str | None = None
    bounds: tuple[KeyBounds, ...] = ()


class ChangeGrantsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    grants: tuple[Grant, ...] = ()
    is_revoked: bool = False


class ChangeGrantsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None


class CommitTxnRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    producer: str | None = None
    batch_number: int = -1
    parts: tuple[TxnPart, ...] = ()
    record_count: int = 0
    digest: bytes = b""
    commit: bool = False
    give_up: bool = False
    staged: tuple[StagedParts, ...] = ()


class CommitTxnResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    is_replay: bool = False
    is_published: bool = False
    record_count: int = 0
    digest: bytes = b""
    parts: tuple[TxnPart, ...] = ()


class Cursor(Struct, frozen=True, gc=False):
    """COMMIT_CURSORS / DESCRIBE_CURSORS: next offsets of a consumer group. `group` names one where groups are listed. A commit with `expected_offset` is done only if the cursor is there, or if -1: if there is none."""

    stream_id: int = -1
    next_offset: int = -1
    committed_at_ms: int = -1
    status: Status | None = None
    group: str | None = None
    expected_offset: int = -2


class DescribeGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    generation: int = -1
    members: tuple[GroupMember, ...] = ()


class DescribePlacementDriverClusterRequest(Struct, frozen=True, gc=False):
    range_server: RangeServer | None = None
    timeout_ms: int = 0


class DescribeRangesRequest(Struct, frozen=True, gc=False):
    """Without `ranges`: those that changed since a revision, unless they are more than `changed_max`."""

    timeout_ms: int = 0
    ranges: tuple[RangeId, ...] = ()
    since_revision: int = -1
    changed_max: int = 0
    with_stored_bytes: bool = False


class DrainServersResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None


class EndTxnRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    end_requests: tuple[EndTxnInfo, ...] = ()


class EndTxnResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    request_index: int = 0
    base_offset: int = -1
    record_count: int = 0
    status: Status | None = None


class FetchResult(Struct, frozen=True, gc=False):
    """One answered stream; its batches are the next `batch_length` bytes of the frame's payload."""

    stream_id: int = -1
    request_index: int = 0
    batch_count: int = 0
    status: Status | None = None
    batch_length: int = -1
    next_offset: int = -1


class GroupHeartbeatResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    generation: int = -1
    stream_ids: tuple[int, ...] = ()


class HaltedRanges(Struct, frozen=True, gc=False):
    """The open ranges in which nothing can be appended, of which `some` are named."""

    range_cnt: int = 0
    some: tuple[RangeId, ...] = ()
    cause: str | None = None


class HeartbeatRequest(Struct, frozen=True, gc=False):
    client_id: str | None = None
    client_role: int = 0
    range_server: RangeServer | None = None
    features: tuple[Feature, ...] = ()
    auth_token: str | None = None
    cluster_id: str | None = None
    server_secret: str | None = None
    store_commit: int = -1
    store_life: str | None = None
    log_id: str | None = None
    durable_position: int = -1
    is_leaving: bool = False
    interval_ms: int = -1

    def __repr__(self) -> str:
        """Return the fields, but for secrets."""
        return repr_without(self, ["auth_token", "server_secret"])


class HeartbeatResponse(Struct, frozen=True, gc=False):
    client_id: str | None = None
    client_role: int = 0
    range_server: RangeServer | None = None
    status: Status | None = None
    features: tuple[Feature, ...] = ()
    cluster_id: str | None = None
    store_commit: int = -1
    store_life: str | None = None
    promised_position: int = -1
    interval_ms: int = -1


class IdAllocationResponse(Struct, frozen=True, gc=False):
    id: int = 0
    status: Status | None = None
    server_secret: str | None = None

    def __repr__(self) -> str:
        """Return the fields, but for secrets."""
        return repr_without(self, ["server_secret"])


class JoinGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    generation: int = -1
    stream_ids: tuple[int, ...] = ()


class LeaveGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None


class ListGrantsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    grants: tuple[Grant, ...] = ()
    status: Status | None = None


class LookupOffsetResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    request_index: int = 0
    offset: int = -1
    status: Status | None = None
    append_time_ms: int = -1


class LookupOffsetsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    lookup_requests: tuple[LookupOffsetInfo, ...] = ()


class MoveRangesRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    moves: tuple[RangeMove, ...] = ()


class PlacementDriverCluster(Struct, frozen=True, gc=False):
    nodes: tuple[PlacementDriverNode, ...] = ()


class RangeCriteria(Struct, frozen=True, gc=False):
    range_server: RangeServer | None = None
    stream_id: int = -1


class RangeMoveResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    is_done: bool = False
    status: Status | None = None


class ReadEntriesResponse(Struct, frozen=True, gc=False):
    """The payload has entries; `before_digest` is of those up to `after_seq`. With `from_offset`, `end_digest` is that with which the range ended, the entries begin at `base_offset`, and `staged_count` batches are staged. `txn_ends` are records of the transactions that ended in the range."""

    throttle_time_ms: int = 0
    status: Status | None = None
    before_digest: bytes = b""
    entry_count: int = 0
    end_digest: bytes = b""
    base_offset: int = -1
    staged_count: int = 0
    txn_ends: bytes = b""


class ReplicaServer(Struct, frozen=True, gc=False):
    server: RangeServer | None = None
    is_primary: bool = False


class ReplicateRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    primary_id: int = -1
    ranges: tuple[ReplicatedRange, ...] = ()


class ReplicateResult(Struct, frozen=True, gc=False):
    """`seq` and `digest` say which entries are durable at the secondary."""

    stream_id: int = -1
    range_index: int = -1
    seq: int = -1
    digest: bytes = b""
    status: Status | None = None


class ReportMetricsRequest(Struct, frozen=True, gc=False):
    """Load of a range server: rates per second, sizes in bytes, latencies in milliseconds."""

    range_server: RangeServer | None = None
    disk_in_rate: int = 0
    disk_out_rate: int = 0
    disk_free_space: int = 0
    disk_unindexed_data_size: int = 0
    memory_used: int = 0
    uring_task_rate: int = 0
    uring_inflight_task_cnt: int = 0
    uring_pending_task_cnt: int = 0
    uring_task_avg_latency: int = 0
    network_append_rate: int = 0
    network_fetch_rate: int = 0
    network_failed_append_rate: int = 0
    network_failed_fetch_rate: int = 0
    network_append_avg_latency: int = 0
    network_fetch_avg_latency: int = 0
    range_missing_replica_cnt: int = 0
    range_active_cnt: int = 0


class ReportMetricsResponse(Struct, frozen=True, gc=False):
    range_server: RangeServer | None = None
    status: Status | None = None


class RestoreMetadataResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    is_complete: bool = False


class SchemaEntry(Struct, frozen=True, gc=False):
    """REGISTER_SCHEMAS / DESCRIBE_SCHEMAS: a version of a stream's schema, an Arrow IPC schema message. Version 0: the stream has none."""

    stream_id: int = -1
    version: int = -1
    fingerprint: str | None = None
    schema: bytes = b""
    registered_at_ms: int = -1
    status: Status | None = None


class SealRangesRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    ranges: tuple[RangeId, ...] = ()
    cause: int = 0


class ServerDescription(Struct, frozen=True, gc=False):
    """DESCRIBE_SERVERS: the range servers of a cluster, as the placement driver that leads knows them."""

    server: RangeServer | None = None
    is_live: bool = False
    disk_free_space: int = -1
    led_range_cnt: int = 0
    copied_range_cnt: int = 0
    sealed_range_cnt: int = 0
    unreplicated_range_cnt: int = 0
    range_missing_replica_cnt: int = 0
    is_draining: bool = False
    is_retired: bool = False
    drain_obstacle: str | None = None


class Stream(Struct, frozen=True, gc=False):
    """A stream's metadata. `retention_period_ms` 0 keeps records for ever, `retention_bytes` 0 any size. Absent (-1), `retention_bytes` is 0 for a new stream, and an update leaves it as it is. An update with `properties` or `expected_properties` leaves a `retention_period_ms` of -1 as it is."""

    stream_id: int = -1
    replica_nums: int = 0
    retention_period_ms: int = 0
    ack_count: int = 0
    name: str | None = None
    created_at_ms: int = -1
    retention_bytes: int = -1
    properties: tuple[StreamProperty, ...] = ()
    expected_properties: tuple[StreamProperty, ...] = ()


class StreamRights(Struct, frozen=True, gc=False):
    stream_id: int = -1
    rights: tuple[str, ...] = ()
    status: Status | None = None
    name: str | None = None


class SystemErrorResponse(Struct, frozen=True, gc=False):
    """Header of a frame whose system error flag is set."""

    status: Status | None = None


class TrimStreamsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    trimmed_streams: tuple[TrimmedStream, ...] = ()


class TxnDescription(Struct, frozen=True, gc=False):
    producer: str | None = None
    batch_number: int = -1
    parts: tuple[TxnPart, ...] = ()
    state: str | None = None
    record_count: int = 0
    digest: bytes = b""
    decided_at_ms: int = -1
    staged_at_ms: int = -1
    lost: tuple[TxnPart, ...] = ()
    subject: str | None = None


class AppendResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    append_responses: tuple[AppendResult, ...] = ()
    status: Status | None = None


class CheckRightsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    streams: tuple[StreamRights, ...] = ()
    status: Status | None = None
    lease_ms: int = 0
    foreign_txn_ids: tuple[str, ...] = ()


class CommitCursorsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    group: str | None = None
    cursors: tuple[Cursor, ...] = ()
    member_id: str | None = None
    generation: int = -1


class CommitCursorsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    cursors: tuple[Cursor, ...] = ()
    status: Status | None = None


class CreateStreamsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    streams: tuple[Stream, ...] = ()


class DeleteStreamResult(Struct, frozen=True, gc=False):
    deleted_stream: Stream | None = None
    status: Status | None = None


class DeleteStreamsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    streams: tuple[Stream, ...] = ()


class DescribeCursorsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    cursors: tuple[Cursor, ...] = ()
    status: Status | None = None


class DescribePlacementDriverClusterResponse(Struct, frozen=True, gc=False):
    status: Status | None = None
    cluster: PlacementDriverCluster | None = None
    throttle_time_ms: int = 0


class DescribeSchemasResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    schemas: tuple[SchemaEntry, ...] = ()
    status: Status | None = None


class DescribeServersResponse(Struct, frozen=True, gc=False):
    """`lacking_range_cnt` open ranges lack `missing_replica_cnt` replicas, the sealed ones `missing_sealed_replica_cnt`."""

    throttle_time_ms: int = 0
    servers: tuple[ServerDescription, ...] = ()
    status: Status | None = None
    missing_replica_cnt: int = 0
    lacking_range_cnt: int = 0
    missing_sealed_replica_cnt: int = 0
    halted: HaltedRanges | None = None


class DescribeStreamResult(Struct, frozen=True, gc=False):
    stream: Stream | None = None
    status: Status | None = None
    stream_id: int = -1


class DescribeTxnsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    txns: tuple[TxnDescription, ...] = ()
    status: Status | None = None


class EndTxnResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    end_responses: tuple[EndTxnResult, ...] = ()
    status: Status | None = None


class FetchResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    fetch_responses: tuple[FetchResult, ...] = ()
    status: Status | None = None


class ListRangesRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    range_owners: tuple[RangeCriteria, ...] = ()
    since_revision: int = -1
    store_commit: int = -1
    store_life: str | None = None


class LookupOffsetsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    lookup_responses: tuple[LookupOffsetResult, ...] = ()
    status: Status | None = None


class MoveRangesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    move_responses: tuple[RangeMoveResult, ...] = ()
    status: Status | None = None


class RegisterSchemasRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    schemas: tuple[SchemaEntry, ...] = ()


class RegisterSchemasResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    schemas: tuple[SchemaEntry, ...] = ()
    status: Status | None = None


class ReplicateResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    replicate_responses: tuple[ReplicateResult, ...] = ()
    status: Status | None = None


class StreamExtent(Struct, frozen=True, gc=False):
    """TAKE_CUT / RESTORE_METADATA: a part of the metadata of a cluster, and where its streams begin and end."""

    stream: Stream | None = None
    start_offset: int = 0
    end_offset: int = 0
    last_range_index: int = -1


class StreamRange(Struct, frozen=True, gc=False):
    """A contiguous piece of a stream, [start_offset, end_offset). `end_offset` is -1 while it is open."""

    stream_id: int = -1
    range_index: int = -1
    start_offset: int = 0
    end_offset: int = 0
    next_offset: int = 0
    servers: tuple[ReplicaServer, ...] = ()
    epoch: int = -1
    replica_count: int = -1
    ack_count: int = -1
    created_at_ms: int = -1
    end_seq: int = -1
    end_digest: bytes = b""


class UpdateStreamResult(Struct, frozen=True, gc=False):
    updated_stream: Stream | None = None
    status: Status | None = None


class UpdateStreamsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    streams: tuple[Stream, ...] = ()


class AppendInfo(Struct, frozen=True, gc=False):
    """One batch of an APPEND frame; `batch_length` bytes of the payload, in request order."""

    stream_range: StreamRange | None = None
    request_index: int = 0
    batch_length: int = 0
    stream_id: int = -1
    writer_id: str | None = None
    sequence: int = -1
    txn_id: str | None = None


class ClusterMetadata(Struct, frozen=True, gc=False):
    streams: tuple[StreamExtent, ...] = ()
    schemas: tuple[SchemaEntry, ...] = ()
    cursors: tuple[Cursor, ...] = ()
    grants: tuple[Grant, ...] = ()
    txns: tuple[TxnDescription, ...] = ()


class CreateRangeRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    stream_range: StreamRange | None = None


class CreateRangeResponse(Struct, frozen=True, gc=False):
    status: Status | None = None
    stream_range: StreamRange | None = None
    throttle_time_ms: int = 0


class CreateStreamResult(Struct, frozen=True, gc=False):
    stream: Stream | None = None
    stream_range: StreamRange | None = None
    status: Status | None = None


class DeleteStreamsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    delete_responses: tuple[DeleteStreamResult, ...] = ()
    status: Status | None = None


class DescribeRangeResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    stream_range: StreamRange | None = None
    status: Status | None = None
    stored_bytes: int = -1


class DescribeStreamsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    describe_responses: tuple[DescribeStreamResult, ...] = ()
    status: Status | None = None


class FetchInfo(Struct, frozen=True, gc=False):
    """One stream of a FETCH frame. `fetch_offset` -2 is the stream's first offset, -1 its tail."""

    stream_range: StreamRange | None = None
    request_index: int = 0
    fetch_offset: int = 0
    batch_max_bytes: int = 0
    stream_id: int = -1
    end_offset: int = -1
    txn_id: str | None = None
    projections: tuple[Projection, ...] = ()
    filters: tuple[BatchFilter, ...] = ()


class ListRangesResult(Struct, frozen=True, gc=False):
    range_owner: RangeCriteria | None = None
    ranges: tuple[StreamRange, ...] = ()
    status: Status | None = None
    stream_id: int = -1
    writers: bytes = b""


class SealRangesResult(Struct, frozen=True, gc=False):
    stream_range: StreamRange | None = None
    status: Status | None = None
    stream_id: int = -1
    writers: bytes = b""
    seq: int = -1
    digest: bytes = b""
    is_damaged: bool = False


class StreamRanges(Struct, frozen=True, gc=False):
    stream_id: int = -1
    ranges: tuple[StreamRange, ...] = ()


class SyncRangesResult(Struct, frozen=True, gc=False):
    stream_id: int = -1
    ranges: tuple[StreamRange, ...] = ()
    status: Status | None = None


class TrimStreamResult(Struct, frozen=True, gc=False):
    trimmed_stream: Stream | None = None
    stream_range: StreamRange | None = None
    status: Status | None = None


class UpdateStreamsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    update_responses: tuple[UpdateStreamResult, ...] = ()
    status: Status | None = None


class AppendRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    append_requests: tuple[AppendInfo, ...] = ()


class CreateStreamsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    create_responses: tuple[CreateStreamResult, ...] = ()
    status: Status | None = None


class DescribeRangesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    describe_responses: tuple[DescribeRangeResult, ...] = ()
    status: Status | None = None
    revision: int = -1


class FetchRequest(Struct, frozen=True, gc=False):
    max_wait_ms: int = 0
    min_bytes: int = 0
    fetch_requests: tuple[FetchInfo, ...] = ()
    timeout_ms: int = 0


class ListRangesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    list_responses: tuple[ListRangesResult, ...] = ()
    status: Status | None = None
    revision: int = -1
    store_commit: int = -1
    store_life: str | None = None
    lacks_commit: bool = False
    lists_changes: bool = False
    changed_streams: tuple[int, ...] = ()


class RestoreMetadataRequest(Struct, frozen=True, gc=False):
    """The first request begins a restore, and the one that `is_complete` ends it; all may be repeated."""

    timeout_ms: int = 0
    backup_id: str | None = None
    metadata: ClusterMetadata | None = None
    last_stream_id: int = -1
    revision: int = -1
    is_complete: bool = False


class SealRangesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    seal_responses: tuple[SealRangesResult, ...] = ()
    status: Status | None = None


class SyncRangesRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 0
    stream_ranges: tuple[StreamRanges, ...] = ()


class SyncRangesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    sync_responses: tuple[SyncRangesResult, ...] = ()
    status: Status | None = None


class TakeCutResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    status: Status | None = None
    metadata: ClusterMetadata | None = None
    cluster_id: str | None = None
    last_stream_id: int = -1
    revision: int = -1
    taken_at_ms: int = -1
    held_us: int = -1
    store_commit: int = -1
    store_life: str | None = None


class TrimStreamsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    streams: tuple[TrimStreamResult, ...] = ()
    status: Status | None = None


class Opcode(enum.IntEnum):
    """Operation codes: the specification's operations, then the extensions on codes that it leaves free."""

    PING = 0x0001
    GOAWAY = 0x0002
    HEARTBEAT = 0x0003
    ALLOCATE_ID = 0x0004
    APPEND = 0x1001
    FETCH = 0x1002
    END_TXN = 0x1003
    REPLICATE = 0x1004
    READ_ENTRIES = 0x1005
    LIST_RANGES = 0x2001
    SEAL_RANGE = 0x2002
    SYNC_RANGES = 0x2003
    CREATE_RANGE = 0x2004
    DESCRIBE_RANGE = 0x2005
    LOOKUP_OFFSETS = 0x2006
    CREATE_STREAMS = 0x3001
    DELETE_STREAMS = 0x3002
    UPDATE_STREAMS = 0x3003
    DESCRIBE_STREAMS = 0x3004
    TRIM_STREAMS = 0x3005
    COMMIT_CURSORS = 0x3006
    DESCRIBE_CURSORS = 0x3007
    REGISTER_SCHEMAS = 0x3008
    DESCRIBE_SCHEMAS = 0x3009
    JOIN_GROUP = 0x300A
    GROUP_HEARTBEAT = 0x300B
    LEAVE_GROUP = 0x300C
    DESCRIBE_GROUP = 0x300D
    REPORT_METRICS = 0x4001
    DESCRIBE_PD_CLUSTER = 0x4002
    DESCRIBE_SERVERS = 0x4003
    DRAIN_SERVERS = 0x4004
    LIST_GRANTS = 0x4005
    CHANGE_GRANTS = 0x4006
    CHECK_RIGHTS = 0x4007
    MOVE_RANGES = 0x4008
    TAKE_CUT = 0x6001
    RESTORE_METADATA = 0x6002
    COMMIT_TXN = 0x7001
    DESCRIBE_TXNS = 0x7002


WITH_PAYLOAD: Final = frozenset({Opcode.APPEND, Opcode.REPLICATE})
"""Operations whose requests have a payload."""
OPERATIONS: Final[Mapping[Opcode, tuple[type[Struct], type[Struct]]]] = {
    Opcode.HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    Opcode.ALLOCATE_ID: (IdAllocationRequest, IdAllocationResponse),
    Opcode.APPEND: (AppendRequest, AppendResponse),
    Opcode.FETCH: (FetchRequest, FetchResponse),
    Opcode.END_TXN: (EndTxnRequest, EndTxnResponse),
    Opcode.REPLICATE: (ReplicateRequest, ReplicateResponse),
    Opcode.READ_ENTRIES: (ReadEntriesRequest, ReadEntriesResponse),
    Opcode.LIST_RANGES: (ListRangesRequest, ListRangesResponse),
    Opcode.SEAL_RANGE: (SealRangesRequest, SealRangesResponse),
    Opcode.SYNC_RANGES: (SyncRangesRequest, SyncRangesResponse),
    Opcode.CREATE_RANGE: (CreateRangeRequest, CreateRangeResponse),
    Opcode.DESCRIBE_RANGE: (DescribeRangesRequest, DescribeRangesResponse),
    Opcode.LOOKUP_OFFSETS: (LookupOffsetsRequest, LookupOffsetsResponse),
    Opcode.CREATE_STREAMS: (CreateStreamsRequest, CreateStreamsResponse),
    Opcode.DELETE_STREAMS: (DeleteStreamsRequest, DeleteStreamsResponse),
    Opcode.UPDATE_STREAMS: (UpdateStreamsRequest, UpdateStreamsResponse),
    Opcode.DESCRIBE_STREAMS: (DescribeStreamsRequest, DescribeStreamsResponse),
    Opcode.TRIM_STREAMS: (TrimStreamsRequest, TrimStreamsResponse),
    Opcode.COMMIT_CURSORS: (CommitCursorsRequest, CommitCursorsResponse),
    Opcode.DESCRIBE_CURSORS: (DescribeCursorsRequest, DescribeCursorsResponse),
    Opcode.REGISTER_SCHEMAS: (RegisterSchemasRequest, RegisterSchemasResponse),
    Opcode.DESCRIBE_SCHEMAS: (DescribeSchemasRequest, DescribeSchemasResponse),
    Opcode.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    Opcode.GROUP_HEARTBEAT: (GroupHeartbeatRequest, GroupHeartbeatResponse),
    Opcode.LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    Opcode.DESCRIBE_GROUP: (DescribeGroupRequest, DescribeGroupResponse),
    Opcode.REPORT_METRICS: (ReportMetricsRequest, ReportMetricsResponse),
    Opcode.DESCRIBE_PD_CLUSTER: (
        DescribePlacementDriverClusterRequest,
        DescribePlacementDriverClusterResponse,
    ),
    Opcode.DESCRIBE_SERVERS: (DescribeServersRequest, DescribeServersResponse),
    Opcode.DRAIN_SERVERS: (DrainServersRequest, DrainServersResponse),
    Opcode.LIST_GRANTS: (ListGrantsRequest, ListGrantsResponse),
    Opcode.CHANGE_GRANTS: (ChangeGrantsRequest, ChangeGrantsResponse),
    Opcode.CHECK_RIGHTS: (CheckRightsRequest, CheckRightsResponse),
    Opcode.MOVE_RANGES: (MoveRangesRequest, MoveRangesResponse),
    Opcode.TAKE_CUT: (TakeCutRequest, TakeCutResponse),
    Opcode.RESTORE_METADATA: (RestoreMetadataRequest, RestoreMetadataResponse),
    Opcode.COMMIT_TXN: (CommitTxnRequest, CommitTxnResponse),
    Opcode.DESCRIBE_TXNS: (DescribeTxnsRequest, DescribeTxnsResponse),
}
"""The tables of request and response. Other operations have headers without meaning."""


class KeyValue(Struct, frozen=True, gc=False):
    key: str | None = None
    value: str | None = None


class RecordBatchMeta(Struct, frozen=True, gc=False):
    """`last_offset_delta` is the number of records, in a record sequence that of the last record from 0 on. `base_timestamp` is milliseconds since the epoch, UTC."""

    stream_id: int = 0
    flags: int = 0
    base_offset: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    properties: tuple[KeyValue, ...] = ()


class RecordMeta(Struct, frozen=True, gc=False):
    offset_delta: int = 0
    timestamp_delta: int = 0
    headers: tuple[KeyValue, ...] = ()
    properties: tuple[KeyValue, ...] = ()


_KINDS: Final[Mapping[type[Struct], tuple[Kind, ...]]] = {
    CheckRightsRequest: (I32, TEXT, Vector(I64), Vector(TEXT)),
    DescribeCursorsRequest: (I32, TEXT, Vector(I64)),
    DescribeGroupRequest: (I32, TEXT),
    DescribeSchemasRequest: (I32, Vector(I64), BOOL),
    DescribeServersRequest: (I32,),
    DescribeStreamsRequest: (I32, Vector(I64), Vector(TEXT), BOOL, BOOL),
    DescribeTxnsRequest: (I32, TEXT),
    DrainServersRequest: (I32, Vector(I32), BOOL),
    EndTxnInfo: (I64, I32, Vector(TEXT), BOOL, I32, I64),
    Feature: (TEXT, BYTES),
    Grant: (TEXT, TEXT, TEXT),
    GroupHeartbeatRequest: (I32, TEXT, TEXT, I64, Vector(I64)),
    GroupMember: (TEXT, Vector(TEXT), I32, I32, Vector(I64), Vector(I64), TEXT),
    IdAllocationRequest: (I32, TEXT),
    JoinGroupRequest: (I32, TEXT, TEXT, Vector(TEXT), I32, I32),
    KeyBounds: (TEXT, BYTES, BYTES, BOOL, BOOL),
    LeaveGroupRequest: (I32, TEXT, TEXT),
    ListGrantsRequest: (I32, TEXT),
    LookupOffsetInfo: (I64, I32, I64, I64),
    PlacementDriverNode: (TEXT, TEXT, BOOL),
    Projection: (TEXT, BYTES, BYTES, TEXT),
    RangeId: (I64, I32, I64),
    RangeMove: (I64, I32, Vector(I32)),
    RangeServer: (I32, TEXT, TEXT),
    ReadEntriesRequest: (I32, I64, I32, I64, I64, I32, I64),
    ReplicatedRange: (I64, I32, I64, BYTES, I32, I64, I64),
    StagedParts: (TEXT, Vector(I64), Vector(I32), Vector(I64), Vector(I32)),
    Status: (I16, TEXT, BYTES, I64),
    StreamProperty: (TEXT, TEXT),
    TakeCutRequest: (I32,),
    TrimmedStream: (I64, I64),
    TxnPart: (TEXT, I64, I64, I32, I64),
    AppendResult: (I64, I32, I64, I64, Table("Status")),
    BatchFilter: (TEXT, Vector(Table("KeyBounds"))),
    ChangeGrantsRequest: (I32, Vector(Table("Grant")), BOOL),
    ChangeGrantsResponse: (I32, Table("Status")),
    CommitTxnRequest: (
        I32,
        TEXT,
        I64,
        Vector(Table("TxnPart")),
        I64,
        BYTES,
        BOOL,
        BOOL,
        Vector(Table("StagedParts")),
    ),
    CommitTxnResponse: (I32, Table("Status"), BOOL, BOOL, I64, BYTES, Vector(Table("TxnPart"))),
    Cursor: (I64, I64, I64, Table("Status"), TEXT, I64),
    DescribeGroupResponse: (I32, Table("Status"), I64, Vector(Table("GroupMember"))),
    DescribePlacementDriverClusterRequest: (Table("RangeServer"), I32),
    DescribeRangesRequest: (I32, Vector(Table("RangeId")), I64, I32, BOOL),
    DrainServersResponse: (I32, Table("Status")),
    EndTxnRequest: (I32, Vector(Table("EndTxnInfo"))),
    EndTxnResult: (I64, I32, I64, I64, Table("Status")),
    FetchResult: (I64, I32, I32, Table("Status"), I32, I64),
    GroupHeartbeatResponse: (I32, Table("Status"), I64, Vector(I64)),
    HaltedRanges: (I32, Vector(Table("RangeId")), TEXT),
    HeartbeatRequest: (
        TEXT,
        I8,
        Table("RangeServer"),
        Vector(Table("Feature")),
        TEXT,
        TEXT,
        TEXT,
        I64,
        TEXT,
        TEXT,
        I64,
        BOOL,
        I32,
    ),
    HeartbeatResponse: (
        TEXT,
        I8,
        Table("RangeServer"),
        Table("Status"),
        Vector(Table("Feature")),
        TEXT,
        I64,
        TEXT,
        I64,
        I32,
    ),
    IdAllocationResponse: (I32, Table("Status"), TEXT),
    JoinGroupResponse: (I32, Table("Status"), I64, Vector(I64)),
    LeaveGroupResponse: (I32, Table("Status")),
    ListGrantsResponse: (I32, Vector(Table("Grant")), Table("Status")),
    LookupOffsetResult: (I64, I32, I64, Table("Status"), I64),
    LookupOffsetsRequest: (I32, Vector(Table("LookupOffsetInfo"))),
    MoveRangesRequest: (I32, Vector(Table("RangeMove"))),
    PlacementDriverCluster: (Vector(Table("PlacementDriverNode")),),
    RangeCriteria: (Table("RangeServer"), I64),
    RangeMoveResult: (I64, BOOL, Table("Status")),
    ReadEntriesResponse: (I32, Table("Status"), BYTES, I32, BYTES, I64, I32, BYTES),
    ReplicaServer: (Table("RangeServer"), BOOL),
    ReplicateRequest: (I32, I32, Vector(Table("ReplicatedRange"))),
    ReplicateResult: (I64, I32, I64, BYTES, Table("Status")),
    ReportMetricsRequest: (
        Table("RangeServer"),
        I64,
        I64,
        I64,
        I64,
        I64,
        I16,
        I16,
        I32,
        I16,
        I16,
        I16,
        I16,
        I16,
        I16,
        I16,
        I16,
        I16,
    ),
    ReportMetricsResponse: (Table("RangeServer"), Table("Status")),
    RestoreMetadataResponse: (I32, Table("Status"), BOOL),
    SchemaEntry: (I64, I32, TEXT, BYTES, I64, Table("Status")),
    SealRangesRequest: (I32, Vector(Table("RangeId")), I8),
    ServerDescription: (Table("RangeServer"), BOOL, I64, I32, I32, I32, I32, I32, BOOL, BOOL, TEXT),
    Stream: (
        I64,
        I8,
        I64,
        I8,
        TEXT,
        I64,
        I64,
        Vector(Table("StreamProperty")),
        Vector(Table("StreamProperty")),
    ),
    StreamRights: (I64, Vector(TEXT), Table("Status"), TEXT),
    SystemErrorResponse: (Table("Status"),),
    TrimStreamsRequest: (I32, Vector(Table("TrimmedStream"))),
    TxnDescription: (
        TEXT,
        I64,
        Vector(Table("TxnPart")),
        TEXT,
        I64,
        BYTES,
        I64,
        I64,
        Vector(Table("TxnPart")),
        TEXT,
    ),
    AppendResponse: (I32, Vector(Table("AppendResult")), Table("Status")),
    CheckRightsResponse: (I32, Vector(Table("StreamRights")), Table("Status"), I32, Vector(TEXT)),
    CommitCursorsRequest: (I32, TEXT, Vector(Table("Cursor")), TEXT, I64),
    CommitCursorsResponse: (I32, Vector(Table("Cursor")), Table("Status")),
    CreateStreamsRequest: (I32, Vector(Table("Stream"))),
    DeleteStreamResult: (Table("Stream"), Table("Status")),
    DeleteStreamsRequest: (I32, Vector(Table("Stream"))),
    DescribeCursorsResponse: (I32, Vector(Table("Cursor")), Table("Status")),
    DescribePlacementDriverClusterResponse: (Table("Status"), Table("PlacementDriverCluster"), I32),
    DescribeSchemasResponse: (I32, Vector(Table("SchemaEntry")), Table("Status")),
    DescribeServersResponse: (
        I32,
        Vector(Table("ServerDescription")),
        Table("Status"),
        I32,
        I32,
        I32,
        Table("HaltedRanges"),
    ),
    DescribeStreamResult: (Table("Stream"), Table("Status"), I64),
    DescribeTxnsResponse: (I32, Vector(Table("TxnDescription")), Table("Status")),
    EndTxnResponse: (I32, Vector(Table("EndTxnResult")), Table("Status")),
    FetchResponse: (I32, Vector(Table("FetchResult")), Table("Status")),
    ListRangesRequest: (I32, Vector(Table("RangeCriteria")), I64, I64, TEXT),
    LookupOffsetsResponse: (I32, Vector(Table("LookupOffsetResult")), Table("Status")),
    MoveRangesResponse: (I32, Vector(Table("RangeMoveResult")), Table("Status")),
    RegisterSchemasRequest: (I32, Vector(Table("SchemaEntry"))),
    RegisterSchemasResponse: (I32, Vector(Table("SchemaEntry")), Table("Status")),
    ReplicateResponse: (I32, Vector(Table("ReplicateResult")), Table("Status")),
    StreamExtent: (Table("Stream"), I64, I64, I32),
    StreamRange: (
        I64,
        I32,
        I64,
        I64,
        I64,
        Vector(Table("ReplicaServer")),
        I64,
        I8,
        I8,
        I64,
        I64,
        BYTES,
    ),
    UpdateStreamResult: (Table("Stream"), Table("Status")),
    UpdateStreamsRequest: (I32, Vector(Table("Stream"))),
    AppendInfo: (Table("StreamRange"), I32, I32, I64, TEXT, I64, TEXT),
    ClusterMetadata: (
        Vector(Table("StreamExtent")),
        Vector(Table("SchemaEntry")),
        Vector(Table("Cursor")),
        Vector(Table("Grant")),
        Vector(Table("TxnDescription")),
    ),
    CreateRangeRequest: (I32, Table("StreamRange")),
    CreateRangeResponse: (Table("Status"), Table("StreamRange"), I32),
    CreateStreamResult: (Table("Stream"), Table("StreamRange"), Table("Status")),
    DeleteStreamsResponse: (I32, Vector(Table("DeleteStreamResult")), Table("Status")),
    DescribeRangeResult: (I64, Table("StreamRange"), Table("Status"), I64),
    DescribeStreamsResponse: (I32, Vector(Table("DescribeStreamResult")), Table("Status")),
    FetchInfo: (
        Table("StreamRange"),
        I32,
        I64,
        I32,
        I64,
        I64,
        TEXT,
        Vector(Table("Projection")),
        Vector(Table("BatchFilter")),
    ),
    ListRangesResult: (
        Table("RangeCriteria"),
        Vector(Table("StreamRange")),
        Table("Status"),
        I64,
        BYTES,
    ),
    SealRangesResult: (Table("StreamRange"), Table("Status"), I64, BYTES, I64, BYTES, BOOL),
    StreamRanges: (I64, Vector(Table("StreamRange"))),
    SyncRangesResult: (I64, Vector(Table("StreamRange")), Table("Status")),
    TrimStreamResult: (Table("Stream"), Table("StreamRange"), Table("Status")),
    UpdateStreamsResponse: (I32, Vector(Table("UpdateStreamResult")), Table("Status")),
    AppendRequest: (I32, Vector(Table("AppendInfo"))),
    CreateStreamsResponse: (I32, Vector(Table("CreateStreamResult")), Table("Status")),
    DescribeRangesResponse: (I32, Vector(Table("DescribeRangeResult")), Table("Status"), I64),
    FetchRequest: (I32, I32, Vector(Table("FetchInfo")), I32),
    ListRangesResponse: (
        I32,
        Vector(Table("ListRangesResult")),
        Table("Status"),
        I64,
        I64,
        TEXT,
        BOOL,
        BOOL,
        Vector(I64),
    ),
    RestoreMetadataRequest: (I32, TEXT, Table("ClusterMetadata"), I64, I64, BOOL),
    SealRangesResponse: (I32, Vector(Table("SealRangesResult")), Table("Status")),
    SyncRangesRequest: (I32, Vector(Table("StreamRanges"))),
    SyncRangesResponse: (I32, Vector(Table("SyncRangesResult")), Table("Status")),
    TakeCutResponse: (
        I32,
        Table("Status"),
        Table("ClusterMetadata"),
        TEXT,
        I64,
        I64,
        I64,
        I64,
        I64,
        TEXT,
    ),
    TrimStreamsResponse: (I32, Vector(Table("TrimStreamResult")), Table("Status")),
    KeyValue: (TEXT, TEXT),
    RecordBatchMeta: (I64, I16, I64, I32, I64, Vector(Table("KeyValue"))),
    RecordMeta: (I32, I32, Vector(Table("KeyValue")), Vector(Table("KeyValue"))),
}
LAYOUTS: Final[Mapping[type[Struct], tuple[Field, ...]]] = {
    table: fields_of(table, kinds) for table, kinds in _KINDS.items()
}


_V_STATUS_1 = b"\x0c\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x04\x00"
_P_STATUS_1 = struct.Struct("<iq").pack
_V_STATUS_2 = b"\x04\x00\x04\x00"
_P_STATUS_2 = struct.Struct("<i").pack


def _write_status(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is Status
            and value.code == 0
            and value.message is None
            and value.detail == b""
        ):
            handler_duration_us = value.handler_duration_us
            out = writer.out
            if handler_duration_us != -1:
                at = writer.begin(_V_STATUS_1, True)
                out += _P_STATUS_1(writer.distance, handler_duration_us)
                return at
            at = writer.begin(_V_STATUS_2, False)
            out += _P_STATUS_2(writer.distance)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["Status"].write_any(writer, value)


_V_STREAM_RANGE_1 = b"\x0c\x00 \x00\x04\x00\x1c\x00\x0c\x00\x14\x00"
_P_STREAM_RANGE_1 = struct.Struct("<iqqqi").pack
_V_STREAM_RANGE_2 = b"\n\x00\x18\x00\x04\x00\x14\x00\x0c\x00\x00\x00"
_P_STREAM_RANGE_2 = struct.Struct("<iqqi").pack
_V_STREAM_RANGE_3 = b"\x0c\x00\x18\x00\x04\x00\x14\x00\x00\x00\x0c\x00"
_P_STREAM_RANGE_3 = struct.Struct("<iqqi").pack
_V_STREAM_RANGE_4 = b"\x08\x00\x10\x00\x04\x00\x0c\x00"
_P_STREAM_RANGE_4 = struct.Struct("<iqi").pack


def _write_stream_range(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is StreamRange
            and (stream_id := value.stream_id) != -1
            and (range_index := value.range_index) != -1
            and value.next_offset == 0
            and value.servers == ()
            and value.epoch == -1
            and value.replica_count == -1
            and value.ack_count == -1
            and value.created_at_ms == -1
            and value.end_seq == -1
            and value.end_digest == b""
        ):
            start_offset = value.start_offset
            end_offset = value.end_offset
            out = writer.out
            if start_offset != 0:
                if end_offset != 0:
                    at = writer.begin(_V_STREAM_RANGE_1, True)
                    out += _P_STREAM_RANGE_1(
                        writer.distance, stream_id, start_offset, end_offset, range_index
                    )
                    return at
                at = writer.begin(_V_STREAM_RANGE_2, True)
                out += _P_STREAM_RANGE_2(writer.distance, stream_id, start_offset, range_index)
                return at
            if end_offset != 0:
                at = writer.begin(_V_STREAM_RANGE_3, True)
                out += _P_STREAM_RANGE_3(writer.distance, stream_id, end_offset, range_index)
                return at
            at = writer.begin(_V_STREAM_RANGE_4, True)
            out += _P_STREAM_RANGE_4(writer.distance, stream_id, range_index)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["StreamRange"].write_any(writer, value)


_V_APPEND_INFO_1 = b"\x10\x00$\x00\x1c\x00\x14\x00\x18\x00\x04\x00 \x00\x0c\x00"
_P_APPEND_INFO_1 = struct.Struct("<iqqii4x4x").pack
_V_APPEND_INFO_2 = b"\x0c\x00\x18\x00\x14\x00\x0c\x00\x10\x00\x04\x00"
_P_APPEND_INFO_2 = struct.Struct("<iqii4x").pack
_V_APPEND_INFO_3 = b"\x10\x00 \x00\x18\x00\x00\x00\x14\x00\x04\x00\x1c\x00\x0c\x00"
_P_APPEND_INFO_3 = struct.Struct("<iqqi4x4x").pack
_V_APPEND_INFO_4 = b"\x0c\x00\x14\x00\x10\x00\x00\x00\x0c\x00\x04\x00"
_P_APPEND_INFO_4 = struct.Struct("<iqi4x").pack


def _write_append_info(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is AppendInfo
            and (stream_range := value.stream_range) is not None
            and (batch_length := value.batch_length) != 0
            and (stream_id := value.stream_id) != -1
            and value.txn_id is None
        ):
            request_index = value.request_index
            writer_id = value.writer_id
            sequence = value.sequence
            out = writer.out
            if request_index != 0:
                if writer_id is not None and sequence != -1:
                    at = writer.begin(_V_APPEND_INFO_1, True)
                    out += _P_APPEND_INFO_1(
                        writer.distance, stream_id, sequence, request_index, batch_length
                    )
                    put_u32(out, at + 28, _write_stream_range(writer, stream_range) - at - 28)
                    put_u32(out, at + 32, writer.write_text(writer_id) - at - 32)
                    return at
                if writer_id is None and sequence == -1:
                    at = writer.begin(_V_APPEND_INFO_2, True)
                    out += _P_APPEND_INFO_2(writer.distance, stream_id, request_index, batch_length)
                    put_u32(out, at + 20, _write_stream_range(writer, stream_range) - at - 20)
                    return at
            elif writer_id is not None and sequence != -1:
                at = writer.begin(_V_APPEND_INFO_3, True)
                out += _P_APPEND_INFO_3(writer.distance, stream_id, sequence, batch_length)
                put_u32(out, at + 24, _write_stream_range(writer, stream_range) - at - 24)
                put_u32(out, at + 28, writer.write_text(writer_id) - at - 28)
                return at
            elif writer_id is None and sequence == -1:
                at = writer.begin(_V_APPEND_INFO_4, True)
                out += _P_APPEND_INFO_4(writer.distance, stream_id, batch_length)
                put_u32(out, at + 16, _write_stream_range(writer, stream_range) - at - 16)
                return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["AppendInfo"].write_any(writer, value)


_V_APPEND_REQUEST_1 = b"\x08\x00\x0c\x00\x04\x00\x08\x00"
_P_APPEND_REQUEST_1 = struct.Struct("<ii4x").pack


def _write_append_request(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is AppendRequest
            and (timeout_ms := value.timeout_ms) != 0
            and (append_requests := value.append_requests) != ()
        ):
            out = writer.out
            at = writer.begin(_V_APPEND_REQUEST_1, False)
            out += _P_APPEND_REQUEST_1(writer.distance, timeout_ms)
            put_u32(out, at + 8, writer.write_vector(append_requests, _write_append_info) - at - 8)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["AppendRequest"].write_any(writer, value)


_V_APPEND_RESULT_1 = b"\x0e\x00$\x00\x04\x00\x1c\x00\x0c\x00\x14\x00 \x00\x00\x00"
_P_APPEND_RESULT_1 = struct.Struct("<iqqqi4x").pack
_V_APPEND_RESULT_2 = b"\x0e\x00 \x00\x04\x00\x00\x00\x0c\x00\x14\x00\x1c\x00\x00\x00"
_P_APPEND_RESULT_2 = struct.Struct("<iqqq4x").pack


def _write_append_result(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is AppendResult
            and (stream_id := value.stream_id) != -1
            and (base_offset := value.base_offset) != 0
            and (stream_append_time_ms := value.stream_append_time_ms) != 0
            and (status := value.status) is not None
        ):
            request_index = value.request_index
            out = writer.out
            if request_index != 0:
                at = writer.begin(_V_APPEND_RESULT_1, True)
                out += _P_APPEND_RESULT_1(
                    writer.distance, stream_id, base_offset, stream_append_time_ms, request_index
                )
                put_u32(out, at + 32, _write_status(writer, status) - at - 32)
                return at
            at = writer.begin(_V_APPEND_RESULT_2, True)
            out += _P_APPEND_RESULT_2(
                writer.distance, stream_id, base_offset, stream_append_time_ms
            )
            put_u32(out, at + 28, _write_status(writer, status) - at - 28)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["AppendResult"].write_any(writer, value)


_V_APPEND_RESPONSE_1 = b"\n\x00\x0c\x00\x00\x00\x04\x00\x08\x00\x00\x00"
_P_APPEND_RESPONSE_1 = struct.Struct("<i4x4x").pack


def _write_append_response(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is AppendResponse
            and value.throttle_time_ms == 0
            and (append_responses := value.append_responses) != ()
            and (status := value.status) is not None
        ):
            out = writer.out
            at = writer.begin(_V_APPEND_RESPONSE_1, False)
            out += _P_APPEND_RESPONSE_1(writer.distance)
            put_u32(
                out, at + 4, writer.write_vector(append_responses, _write_append_result) - at - 4
            )
            put_u32(out, at + 8, _write_status(writer, status) - at - 8)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["AppendResponse"].write_any(writer, value)


_V_FETCH_INFO_1 = b"\x10\x00(\x00$\x00\x1c\x00\x04\x00 \x00\x0c\x00\x14\x00"
_P_FETCH_INFO_1 = struct.Struct("<iqqqii4x").pack
_V_FETCH_INFO_2 = b"\x0e\x00 \x00\x1c\x00\x14\x00\x04\x00\x18\x00\x0c\x00\x00\x00"
_P_FETCH_INFO_2 = struct.Struct("<iqqii4x").pack
_V_FETCH_INFO_3 = b"\x10\x00$\x00 \x00\x00\x00\x04\x00\x1c\x00\x0c\x00\x14\x00"
_P_FETCH_INFO_3 = struct.Struct("<iqqqi4x").pack
_V_FETCH_INFO_4 = b"\x0e\x00\x1c\x00\x18\x00\x00\x00\x04\x00\x14\x00\x0c\x00\x00\x00"
_P_FETCH_INFO_4 = struct.Struct("<iqqi4x").pack


def _write_fetch_info(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is FetchInfo
            and (stream_range := value.stream_range) is not None
            and (fetch_offset := value.fetch_offset) != 0
            and (batch_max_bytes := value.batch_max_bytes) != 0
            and (stream_id := value.stream_id) != -1
            and value.txn_id is None
            and value.projections == ()
            and value.filters == ()
        ):
            request_index = value.request_index
            end_offset = value.end_offset
            out = writer.out
            if request_index != 0:
                if end_offset != -1:
                    at = writer.begin(_V_FETCH_INFO_1, True)
                    out += _P_FETCH_INFO_1(
                        writer.distance,
                        fetch_offset,
                        stream_id,
                        end_offset,
                        request_index,
                        batch_max_bytes,
                    )
                    put_u32(out, at + 36, _write_stream_range(writer, stream_range) - at - 36)
                    return at
                at = writer.begin(_V_FETCH_INFO_2, True)
                out += _P_FETCH_INFO_2(
                    writer.distance, fetch_offset, stream_id, request_index, batch_max_bytes
                )
                put_u32(out, at + 28, _write_stream_range(writer, stream_range) - at - 28)
                return at
            if end_offset != -1:
                at = writer.begin(_V_FETCH_INFO_3, True)
                out += _P_FETCH_INFO_3(
                    writer.distance, fetch_offset, stream_id, end_offset, batch_max_bytes
                )
                put_u32(out, at + 32, _write_stream_range(writer, stream_range) - at - 32)
                return at
            at = writer.begin(_V_FETCH_INFO_4, True)
            out += _P_FETCH_INFO_4(writer.distance, fetch_offset, stream_id, batch_max_bytes)
            put_u32(out, at + 24, _write_stream_range(writer, stream_range) - at - 24)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["FetchInfo"].write_any(writer, value)


_V_FETCH_REQUEST_1 = b"\x0c\x00\x14\x00\x04\x00\x08\x00\x10\x00\x0c\x00"
_P_FETCH_REQUEST_1 = struct.Struct("<iiii4x").pack


def _write_fetch_request(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is FetchRequest
            and (max_wait_ms := value.max_wait_ms) != 0
            and (min_bytes := value.min_bytes) != 0
            and (fetch_requests := value.fetch_requests) != ()
            and (timeout_ms := value.timeout_ms) != 0
        ):
            out = writer.out
            at = writer.begin(_V_FETCH_REQUEST_1, False)
            out += _P_FETCH_REQUEST_1(writer.distance, max_wait_ms, min_bytes, timeout_ms)
            put_u32(out, at + 16, writer.write_vector(fetch_requests, _write_fetch_info) - at - 16)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["FetchRequest"].write_any(writer, value)


_V_FETCH_RESULT_1 = b"\x10\x00$\x00\x04\x00\x14\x00\x18\x00 \x00\x1c\x00\x0c\x00"
_P_FETCH_RESULT_1 = struct.Struct("<iqqiii4x").pack
_V_FETCH_RESULT_2 = b"\x10\x00 \x00\x04\x00\x00\x00\x14\x00\x1c\x00\x18\x00\x0c\x00"
_P_FETCH_RESULT_2 = struct.Struct("<iqqii4x").pack


def _write_fetch_result(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is FetchResult
            and (stream_id := value.stream_id) != -1
            and (batch_count := value.batch_count) != 0
            and (status := value.status) is not None
            and (batch_length := value.batch_length) != -1
            and (next_offset := value.next_offset) != -1
        ):
            request_index = value.request_index
            out = writer.out
            if request_index != 0:
                at = writer.begin(_V_FETCH_RESULT_1, True)
                out += _P_FETCH_RESULT_1(
                    writer.distance,
                    stream_id,
                    next_offset,
                    request_index,
                    batch_count,
                    batch_length,
                )
                put_u32(out, at + 32, _write_status(writer, status) - at - 32)
                return at
            at = writer.begin(_V_FETCH_RESULT_2, True)
            out += _P_FETCH_RESULT_2(
                writer.distance, stream_id, next_offset, batch_count, batch_length
            )
            put_u32(out, at + 28, _write_status(writer, status) - at - 28)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["FetchResult"].write_any(writer, value)


_V_FETCH_RESPONSE_1 = b"\n\x00\x0c\x00\x00\x00\x04\x00\x08\x00\x00\x00"
_P_FETCH_RESPONSE_1 = struct.Struct("<i4x4x").pack


def _write_fetch_response(writer: Writer, value: Any) -> int:
    try:
        if (
            value.__class__ is FetchResponse
            and value.throttle_time_ms == 0
            and (fetch_responses := value.fetch_responses) != ()
            and (status := value.status) is not None
        ):
            out = writer.out
            at = writer.begin(_V_FETCH_RESPONSE_1, False)
            out += _P_FETCH_RESPONSE_1(writer.distance)
            put_u32(out, at + 4, writer.write_vector(fetch_responses, _write_fetch_result) - at - 4)
            put_u32(out, at + 8, _write_status(writer, status) - at - 8)
            return at
    except MISFIT:
        pass  # it is raised below, with the name of the field
    return writer.tables["FetchResponse"].write_any(writer, value)


WRITERS: Final[Mapping[type[Struct], WriteValue]] = {
    Status: _write_status,
    StreamRange: _write_stream_range,
    AppendInfo: _write_append_info,
    AppendRequest: _write_append_request,
    AppendResult: _write_append_result,
    AppendResponse: _write_append_response,
    FetchInfo: _write_fetch_info,
    FetchRequest: _write_fetch_request,
    FetchResult: _write_fetch_result,
    FetchResponse: _write_fetch_response,
}
"""Functions that write the hot tables."""
