"""TAKE_CUT: the metadata of a cluster, and where its streams end, at one moment.

For that moment no decision is made, and all that were made are published. So a decision is in the
cut if, and only if, all its records are in front of the ends. Appends go on: records that were
acknowledged when the request arrives are in front of the ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks, cut_by_weight, stream_weight
from sbp_core.errors import NoRangeServerError, RequestTimeoutError, SbpError, invalid
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import (
    BEFORE_RANGES,
    NO_PROPERTIES,
    RangeRecord,
    StreamRecord,
    range_table,
    stream_table,
)
from sbp_core.pd.txns.publishing import Publisher
from sbp_core.peers.driver_calls import Peers, server_addresses
from sbp_core.server.answers import each_of, in_parts
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    ClusterMetadata,
    Cursor,
    Grant,
    SchemaEntry,
    StreamExtent,
    StreamRange,
    TakeCutRequest,
    TakeCutResponse,
    TxnDescription,
)
from sbp_core.wire.status import SUCCESS

_RANGES_AT_ONCE: Final = 10_000
HOLD_MS_MAX: Final = 5_000
"""Time in which all decisions have to be published; else no cut is taken."""
CUT_MS_MAX: Final = 15_000
"""Time in which a cut has to be taken then: it takes up to 0.1 s for 1000 streams."""
_NAMED_MAX: Final = 3
"""Decisions that a message names."""


@dataclass(slots=True)
class _Read:
    """The metadata as they were read; `last` are the last ranges of the streams."""

    commit: CommitId
    last_stream_id: int
    revision: int
    last_decision: int
    streams: list[tuple[StreamRecord, RangeRecord, RangeRecord]] = field(default_factory=list)
    properties: dict[int, dict[str, str]] = field(default_factory=dict)
    open_ranges: list[StreamRange] = field(default_factory=list)
    schemas: list[SchemaEntry] = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    txns: list[TxnDescription] = field(default_factory=list)


class CutTaker:
    """Serves TAKE_CUT."""

    def __init__(
        self, store: StoreThread, publisher: Publisher, peers: Peers, clock: Clock
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._peers = peers
        self._clock = clock

    async def take(self, call: ServerCall) -> Answer:
        """SPEC "TAKE_CUT": metadata in frames of about 1 MiB. Each has the same head."""
        call.decode(TakeCutRequest)
        await self._extents(await self._store.run(_read))  # a server that is down holds nothing up
        try:
            async with asyncio.timeout(HOLD_MS_MAX / 1000) as patience:
                async with self._publisher.held():
                    patience.reschedule(asyncio.get_running_loop().time() + CUT_MS_MAX / 1000)
                    began_at = self._clock.monotonic()
                    taken_at_ms = self._clock.wall_ms()
                    found = await self._store.run(_read_published)
                    extents = await self._extents(found)
                    decided = await self._store.run(lambda store: store.transactions.last_number())
                    if decided != found.last_decision:  # it leads no longer, or an error hid one
                        raise RequestTimeoutError.of("a batch was decided during the cut: retry")
                    held_us = round(1e6 * (self._clock.monotonic() - began_at))
        except TimeoutError:
            raise await self._late() from None
        head = TakeCutResponse(
            status=SUCCESS,
            cluster_id=self._store.cluster_id,
            last_stream_id=found.last_stream_id,
            revision=found.revision,
            taken_at_ms=taken_at_ms,
            held_us=held_us,
            store_commit=found.commit.number,
            store_life=found.commit.life_id,
        )
        return in_parts(
            each_of((part,) for part in _parts(found, extents)),
            lambda part: replace(head, metadata=part[0] if part else ClusterMetadata()),
        )

    async def _extents(self, found: _Read) -> list[StreamExtent]:
        """Return where the streams end now, without the streams that were deleted since then.

        Raises NoRangeServerError while the primary of one does not answer.
        """
        answers = await self._peers.describe(found.open_ranges)
        unknown = {
            stream_id
            for stream_id, each in answers.items()
            if isinstance(each, SbpError) or each.stream_range is None
        }
        known = await self._store.run(lambda store: store.streams_by_id(sorted(unknown)))
        left = {each.stream_id for each in known if each is not None}
        for each in found.open_ranges:
            if each.stream_id in left:
                raise NoRangeServerError.of(
                    f"where stream {each.stream_id} ends is not known: the server of its open range"
                    f" at {server_addresses(each)[0] or 'an unknown address'} does not answer as"
                    f" expected ({answers[each.stream_id]}); retry when it is reachable"
                )
        return [
            StreamExtent(
                stream_table(stream, found.properties.get(stream.stream_id, NO_PROPERTIES)),
                first.start_offset,
                _end(last, answers),
                last.range_index,
            )
            for stream, first, last in found.streams
            if stream.stream_id not in unknown
        ]

    async def _late(self) -> SbpError:
        """Return the error of a cut that took too long."""
        waiting = await self._store.run(lambda store: store.transactions.unpublished())
        if not waiting:
            return RequestTimeoutError.of(
                f"no cut could be taken within {CUT_MS_MAX} ms, as the placement driver or a range"
                " server is too slow now, or another cut is being taken; retry"
            )
        named = ", ".join(
            f"batch {each.batch_number} of {each.producer}" for each in waiting[:_NAMED_MAX]
        )
        return invalid(  # a retry would hold up commits again
            f"no cut can be taken while decided batches are not published: {named}"
            f" ({len(waiting)} in all). Start the range servers that they wait for, or give up what"
            " is lost: see `sbp txns`"
        )


def _end(last: RangeRecord, answers: Mapping[int, object]) -> int:
    answer = answers.get(last.stream_id)
    described = getattr(answer, "stream_range", None)
    if last.end_offset is not None or described is None:
        return last.start_offset if last.end_offset is None else last.end_offset
    end: int = described.next_offset
    return end


def _read_published(store: MetadataStore) -> _Read:
    """Read everything, with no decision that is not published. Raises RequestTimeoutError."""
    if store.transactions.unpublished():
        raise RequestTimeoutError.of("a batch is not published yet: retry")
    return _read(store)


def _read(store: MetadataStore) -> _Read:
    """Read everything; on the thread of the store, so nothing changes while it reads."""
    decisions = store.transactions.decided_after(-1, limits.ROWS_MAX)
    found = _Read(
        store.last_commit,
        store.servers.last_stream_id(),
        store.revision(),
        store.transactions.last_number(),
        properties=store.properties.all(),
        schemas=[SchemaEntry(*astuple(each)) for each in store.schemas.all()],
        cursors=[
            Cursor(each.stream_id, each.next_offset, each.committed_at_ms, group=group)
            for group, each in store.cursors.all()
        ],
        grants=[Grant(each.subject, each.right.value, each.pattern) for each in store.grants.of()],
        txns=[TxnDescription(**asdict(each)) for _, each in decisions],
    )
    bounds = _range_bounds(store)
    addresses = store.servers.addresses()
    for stream in store.streams_after(-1, limits.ROWS_MAX):
        first, last = bounds[stream.stream_id]
        found.streams.append((stream, first, last))
        if last.end_offset is None:
            found.open_ranges.append(range_table(last, addresses))
    return found


def _range_bounds(store: MetadataStore) -> dict[int, tuple[RangeRecord, RangeRecord]]:
    """Return the first and the last range of each stream. Memory is bounded: there may be many."""
    bounds: dict[int, tuple[RangeRecord, RangeRecord]] = {}
    after = BEFORE_RANGES
    while ranges := store.ranges_after(after, _RANGES_AT_ONCE):
        for each in ranges:
            first, _ = bounds.get(each.stream_id, (each, each))
            bounds[each.stream_id] = (first, each)
        after = ranges[-1].key
    return bounds


def _parts(found: _Read, extents: list[StreamExtent]) -> Iterator[ClusterMetadata]:
    """Cut the metadata into parts that fit into a header."""
    count_max = limits.RESULTS_PER_FRAME
    for some in cut_by_weight(extents, lambda each: stream_weight(each.stream)):
        yield ClusterMetadata(streams=tuple(some))
    for schemas in chunks(found.schemas, limits.SCHEMAS_PER_TURN):
        yield ClusterMetadata(schemas=tuple(schemas))
    for cursors in chunks(found.cursors, count_max):
        yield ClusterMetadata(cursors=tuple(cursors))
    for grants in chunks(found.grants, count_max):
        yield ClusterMetadata(grants=tuple(grants))
    for txns in chunks(found.txns, count_max):
        yield ClusterMetadata(txns=tuple(txns))
