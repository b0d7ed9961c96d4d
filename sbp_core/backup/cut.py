"""The metadata of a cluster, between the tables of the protocol and the entries of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sbp_core import limits
from sbp_core.backup.format import (
    CursorEntry,
    DecisionEntry,
    GrantEntry,
    Manifest,
    SchemaEntry,
    StreamEntry,
)
from sbp_core.client import AsyncClient
from sbp_core.client.operations.range_placement import cut_by_weight
from sbp_core.errors import ProtocolError
from sbp_core.wire import headers
from sbp_core.wire.headers import ClusterMetadata, TakeCutRequest, TakeCutResponse
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")

_NO_METADATA: Final = ClusterMetadata()


@dataclass(frozen=True, slots=True)
class Cut:
    """The content of a cluster at one moment; the streams have no chunks yet."""

    head: TakeCutResponse
    streams: list[StreamEntry] = field(default_factory=list)
    schemas: list[SchemaEntry] = field(default_factory=list)
    cursors: list[CursorEntry] = field(default_factory=list)
    grants: list[GrantEntry] = field(default_factory=list)
    decisions: list[DecisionEntry] = field(default_factory=list)


async def take_cut(client: AsyncClient) -> Cut:
    """Ask the placement driver for a cut (SPEC "TAKE_CUT"). Raises SbpError."""
    answers = await client.ask(
        Opcode.TAKE_CUT, TakeCutRequest(limits.REQUEST_TIMEOUT_MS), TakeCutResponse
    )
    cut = Cut(answers[0])
    for answer in answers:
        part = answer.metadata or _NO_METADATA
        cut.streams.extend(map(_stream_entry, part.streams))
        cut.schemas.extend(
            SchemaEntry(
                each.stream_id,
                each.version,
                each.fingerprint or "",
                each.schema,
                each.registered_at_ms,
            )
            for each in part.schemas
        )
        cut.cursors.extend(
            CursorEntry(each.group or "", each.stream_id, each.next_offset, each.committed_at_ms)
            for each in part.cursors
        )
        cut.grants.extend(
            GrantEntry(each.subject or "", each.right or "", each.pattern or "")
            for each in part.grants
        )
        cut.decisions.extend(
            DecisionEntry(
                each.producer or "",
                each.batch_number,
                each.record_count,
                each.digest,
                each.decided_at_ms,
                each.subject,
            )
            for each in part.txns
        )
    return cut


def _stream_entry(extent: headers.StreamExtent) -> StreamEntry:
    stream = extent.stream
    if stream is None or not 0 <= extent.start_offset <= extent.end_offset:
        raise ProtocolError("a cut has a stream without id or bounds")
    return StreamEntry(
        stream.stream_id,
        stream.name,
        stream.created_at_ms,
        stream.replica_nums,
        stream.ack_count,
        stream.retention_period_ms,
        stream.retention_bytes,
        extent.start_offset,
        extent.end_offset,
        extent.last_range_index,
        properties={each.key or "": each.value or "" for each in stream.properties},
    )


def stream_parts(manifest: Manifest) -> Iterator[ClusterMetadata]:
    """Return the streams of a backup in parts of one request each, one at least."""
    for some in cut_by_weight(manifest.streams, lambda each: 1 + len(each.properties)) or [()]:
        yield ClusterMetadata(streams=tuple(map(_extent, some)))


def other_parts(manifest: Manifest) -> Iterator[ClusterMetadata]:
    """Return all but the streams. A cursor beyond the end of its stream is at the end."""
    ends = {each.stream_id: each.end_offset for each in manifest.streams}
    schemas = [
        headers.SchemaEntry(
            each.stream_id, each.version, each.fingerprint, each.schema, each.registered_at_ms
        )
        for each in manifest.schemas
        if each.stream_id in ends
    ]
    for some in _cut(schemas, limits.SCHEMAS_PER_TURN):
        yield ClusterMetadata(schemas=tuple(some))
    for cursors in _cut(_cursors(manifest, ends)):
        yield ClusterMetadata(cursors=tuple(cursors))
    for grants in _cut(manifest.grants):
        yield ClusterMetadata(
            grants=tuple(headers.Grant(each.subject, each.right, each.pattern) for each in grants)
        )
    for decisions in _cut(manifest.decisions):
        yield ClusterMetadata(
            txns=tuple(
                headers.TxnDescription(
                    producer=each.producer,
                    batch_number=each.batch_number,
                    record_count=each.record_count,
                    digest=each.digest,
                    decided_at_ms=each.decided_at_ms,
                    subject=each.subject,
                )
                for each in decisions
            )
        )


def _cursors(manifest: Manifest, ends: Mapping[int, int]) -> list[headers.Cursor]:
    return [
        headers.Cursor(
            each.stream_id,
            min(each.next_offset, ends[each.stream_id]),
            each.committed_at_ms,
            group=each.group,
        )
        for each in manifest.cursors
        if each.stream_id in ends
    ]


def _extent(entry: StreamEntry) -> headers.StreamExtent:
    """Return where the ranges of a restored stream begin: at its first batch."""
    begin = entry.chunks[0].start if entry.chunks else entry.end_offset
    return headers.StreamExtent(
        headers.Stream(
            entry.stream_id,
            entry.replica_count,
            entry.retention_period_ms,
            entry.ack_count,
            entry.name,
            entry.created_at_ms,
            entry.retention_bytes,
            tuple(headers.StreamProperty(*each) for each in entry.properties.items()),
        ),
        begin,
        entry.end_offset,
        entry.last_range_index,
    )


def _cut(items: Sequence[T], count_max: int = limits.RESULTS_PER_FRAME) -> list[Sequence[T]]:
    return [items[at : at + count_max] for at in range(0, len(items), count_max)]
