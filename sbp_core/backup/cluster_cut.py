"""The metadata of a cluster, between the tables of the protocol and the entries of a manifest.

An entry and its table have fields of the same names, so msgspec converts one into the other. Only
streams need code: their extent and their properties have another form in a manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict, replace

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
from sbp_core.client.operations.range_placement import chunks, cut_by_weight
from sbp_core.errors import ProtocolError
from sbp_core.wire import headers
from sbp_core.wire.headers import ClusterMetadata, TakeCutRequest, TakeCutResponse
from sbp_core.wire.opcodes import Opcode

S = TypeVar("S", bound=Struct)

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
        cut.schemas.extend(_entries(part.schemas, SchemaEntry))
        cut.cursors.extend(_entries(part.cursors, CursorEntry))
        cut.grants.extend(_entries(part.grants, GrantEntry))
        cut.decisions.extend(_entries(part.txns, DecisionEntry))
    return cut


def _entries(tables: Sequence[Struct], entry: type[S]) -> list[S]:
    try:
        return convert(tables, list[entry], from_attributes=True)  # type: ignore[valid-type]
    except ValidationError as error:
        raise ProtocolError(f"a cut has an incomplete {entry.__name__}: {error}") from error


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
    schemas = [each for each in manifest.schemas if each.stream_id in ends]
    cursors = [
        replace(each, next_offset=min(each.next_offset, ends[each.stream_id]))
        for each in manifest.cursors
        if each.stream_id in ends
    ]
    for schema_tables in _tables(schemas, headers.SchemaEntry, limits.SCHEMAS_PER_TURN):
        yield ClusterMetadata(schemas=schema_tables)
    for cursor_tables in _tables(cursors, headers.Cursor):
        yield ClusterMetadata(cursors=cursor_tables)
    for grant_tables in _tables(manifest.grants, headers.Grant):
        yield ClusterMetadata(grants=grant_tables)
    for txn_tables in _tables(manifest.decisions, headers.TxnDescription):
        yield ClusterMetadata(txns=txn_tables)


def _tables(
    entries: Sequence[Struct], table: type[S], count_max: int = limits.RESULTS_PER_FRAME
) -> Iterator[tuple[S, ...]]:
    for part in chunks(entries, count_max):
        yield tuple(table(**asdict(each)) for each in part)


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
