"""The calls of a placement driver to range servers: a method of `Peers` for each operation.

Operations on many ranges group the ranges by server, cut them into requests, and return an answer
or an error for each range. The functions for transactions need no placement, so any client serves
as their caller. These calls are not retried here; a caller that keeps track of the results may
repeat them:

    async with AsyncClient(endpoint) as client:
        ended = await end_txns(client, server, [TxnEnd(7, 0, ("a.5.x", "a.5.y"), record_count=20)])
        await copy_staged(client, old_server, part, new_server, new_range_index)

The functions raise UnsupportedError, and send nothing, if a server does not know transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sbp_core import limits
from sbp_core.client.operations.append_state import AppendFrame
from sbp_core.client.operations.calls import decode_answer, unanswered
from sbp_core.client.operations.fetch_answer import Question, read_answer
from sbp_core.client.operations.numbering import Marks
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.range_placement import chunks, cut_by_weight
from sbp_core.client.types import RangeInfo, ReceivedBatches, TxnPart
from sbp_core.errors import NotFoundError, ProtocolError, SbpError, TxnIncompleteError
from sbp_core.peers.links import Caller, Links
from sbp_core.records import split_envelopes
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    AppendResponse,
    DescribeRangeResult,
    EndTxnInfo,
    EndTxnRequest,
    EndTxnResponse,
    FetchInfo,
    FetchRequest,
    LookupOffsetInfo,
    LookupOffsetsRequest,
    LookupOffsetsResponse,
    RangeId,
    SealRangesResult,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error
from sbp_core.wire.txn_id import copy_of
from sbp_core.wording import counted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TxnEnd:
    """The end of transactions in a range: publish their staged records, in this order.

    `record_count` is the expected number of records, negative for any number. Without `is_commit`
    the staged records are dropped; `range_index` -1 stands for all ranges of the stream then.
    """

    stream_id: int
    range_index: int
    txn_ids: tuple[str, ...]
    is_commit: bool = True
    record_count: int = -1


@dataclass(frozen=True, slots=True)
class Ended:
    """The records that became readable, from `base_offset` on (-1 if none did)."""

    base_offset: int
    record_count: int


async def end_txns(
    client: Caller,
    endpoint: str,
    ends: Sequence[TxnEnd],
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> list[Ended | SbpError]:
    """End transactions at a range server (SPEC "END_TXN"); return the result of each of `ends`.

    The ends of one frame share a sync. Errors in the result: TxnIncompleteError if other records
    are staged, RangeSealedError if the range takes no records any more, TxnEndedError if the
    records were dropped, InvalidRequestError if they were published in another order, NotFoundError
    if the stream was deleted. Raises SbpError if the server does not answer.
    """
    outcomes: list[Ended | SbpError] = []
    parts = cut_by_weight(ends, lambda end: 1 + len(end.txn_ids), limits.STREAMS_PER_CALL)
    for part in parts:
        outcomes += await _end_frame(client, endpoint, part, timeout_ms)
    return outcomes


async def staged_batches(
    client: Caller, endpoint: str, part: TxnPart, *, timeout_ms: int = limits.REQUEST_TIMEOUT_MS
) -> AsyncIterator[list[bytes]]:
    """Yield the staged batches of a range, in order, a frame at a time.

    SPEC "FETCH", with `txn_id`. Raises NotFoundError if nothing is staged there,
    RangeNotFoundError if the server does not have the range.
    """
    sequence = 0
    while True:
        found = await _read_staged(client, endpoint, part, sequence, timeout_ms)
        batches = [bytes(each) for each in _split(found.payload)]
        if not batches:
            return
        yield batches
        if found.next_offset <= sequence:
            raise ProtocolError(
                f"{endpoint} goes on at batch {found.next_offset} of the staged transaction"
                f" {part.txn_id}, behind batch {sequence}"
            )
        sequence = found.next_offset


async def stage(
    client: Caller,
    endpoint: str,
    where: TxnPart,
    first_sequence: int,
    batches: Sequence[bytes],
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> None:
    """Stage batches under the id and in the open range of `where`.

    Raises WriterGapError unless at least `first_sequence` batches are staged there,
    RangeSealedError, TxnEndedError, and other errors of APPEND. After an error the first batches
    may be staged.
    """
    for frame in _frames(endpoint, where, batches):
        own = [batches[index] for index in frame.indexes]
        marks = [Marks(None, first_sequence + index, where.txn_id) for index in frame.indexes]
        call = frame.call(own, marks, FeatureName.TRANSACTIONS, timeout_ms)
        answers = [decode_answer(each, AppendResponse) for each in await client.exchange(call)]
        results = [result for answer in answers for result in answer.append_responses]
        for result in sorted(results, key=lambda each: each.request_index):
            check_status(result.status)
        if len(results) < len(own):
            raise unanswered(f"the batches of transaction {where.txn_id}")


async def copy_staged(
    client: Caller,
    endpoint: str,
    part: TxnPart,
    to_endpoint: str,
    to_range_index: int,
    *,
    is_replica: bool = False,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> None:
    """Copy the staged batches of a range to another range, under the id of a copy.

    Batches that were copied before do no harm. If nothing is staged, nothing is copied, and END_TXN
    reports whether records are missing. Raises the errors of `stage`. For a source that
    `is_replica`, raises TxnIncompleteError and copies nothing if it lacks records of the part,
    because another replica may have them.
    """
    if is_replica:
        try:
            await _check_count(client, endpoint, part, timeout_ms)
        except NotFoundError:
            return
    copy = TxnPart(
        copy_of(part.txn_id, part.range_index), part.stream_id, to_range_index, part.record_count
    )
    sequence = 0
    try:
        async for batches in staged_batches(client, endpoint, part, timeout_ms=timeout_ms):
            await stage(client, to_endpoint, copy, sequence, batches, timeout_ms=timeout_ms)
            sequence += len(batches)
    except NotFoundError:
        if sequence:
            raise


async def _check_count(client: Caller, endpoint: str, part: TxnPart, timeout_ms: int) -> None:
    record_count = 0
    async for batches in staged_batches(client, endpoint, part, timeout_ms=timeout_ms):
        record_count += sum(
            envelope.record_count for each in batches for envelope in split_envelopes(each)
        )
    if record_count != part.record_count:
        raise TxnIncompleteError.of(
            f"transaction {part.txn_id} has {counted(record_count, 'record')} staged at {endpoint},"
            f" and {part.record_count} to be copied"
        )


def _frames(endpoint: str, where: TxnPart, batches: Sequence[bytes]) -> Iterator[AppendFrame]:
    piece = RangeInfo(where.stream_id, where.range_index, 0, None, 0, (endpoint,))
    frame = AppendFrame(endpoint)
    for index, batch in enumerate(batches):
        if not frame.takes(batch):
            yield frame
            frame = AppendFrame(endpoint)
        frame.add(index, batch, piece)
    if frame.indexes:
        yield frame


async def _end_frame(
    client: Caller, endpoint: str, ends: Sequence[TxnEnd], timeout_ms: int
) -> list[Ended | SbpError]:
    infos = tuple(
        EndTxnInfo(end.stream_id, at, end.txn_ids, end.is_commit, end.range_index, end.record_count)
        for at, end in enumerate(ends)
    )
    request = EndTxnRequest(timeout_ms, infos)
    call = Call(endpoint, Opcode.END_TXN, request, timeout_ms, feature=FeatureName.TRANSACTIONS)
    outcomes: list[Ended | SbpError] = [
        unanswered(f"the transactions in stream {end.stream_id}") for end in ends
    ]
    for frame in await client.exchange(call):
        for result in decode_answer(frame, EndTxnResponse).end_responses:
            if 0 <= result.request_index < len(ends):
                failure = maybe_error(result.status)
                ended = Ended(result.base_offset, result.record_count)
                outcomes[result.request_index] = failure or ended
    return outcomes


async def _read_staged(
    client: Caller, endpoint: str, part: TxnPart, sequence: int, timeout_ms: int
) -> ReceivedBatches:
    info = FetchInfo(
        stream_range=StreamRange(stream_id=part.stream_id, range_index=part.range_index),
        fetch_offset=sequence,
        batch_max_bytes=limits.BATCH_BYTES_MAX,
        stream_id=part.stream_id,
        txn_id=part.txn_id,
    )
    request = FetchRequest(fetch_requests=(info,), timeout_ms=timeout_ms)
    call = Call(endpoint, Opcode.FETCH, request, timeout_ms, feature=FeatureName.TRANSACTIONS)
    for frame in await client.exchange(call):
        answer = read_answer(frame, {0: Question(part.stream_id, sequence)}).get(0)
        if isinstance(answer, SbpError):
            raise answer
        if isinstance(answer, ReceivedBatches):
            return answer
    raise unanswered(f"the staged batches of {part.txn_id}")


def _split(payload: memoryview) -> Iterator[memoryview]:
    position = 0
    for envelope in split_envelopes(payload):
        yield payload[position : position + envelope.length_bytes]
        position += envelope.length_bytes


class Peers:
    """The range servers of a cluster, for its placement driver.

    Calls raise SbpError for a server that does not answer.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    async def seal(
        self, address: str, ranges: Sequence[StreamRange]
    ) -> dict[int, SealRangesResult | SbpError]:
        """Seal ranges at one of their servers (SPEC "SEAL_RANGE"), one of each stream.

        Return the result or the error of each range, by stream id.
        """
        return await self._call_at(Opcode.SEAL_RANGE, address, ranges)

    async def describe(
        self, ranges: Iterable[StreamRange]
    ) -> dict[int, DescribeRangeResult | SbpError]:
        """Describe ranges at their primaries (SPEC "DESCRIBE_RANGE"), one of each stream.

        Return the result or the error of each range, by stream id.
        """
        hosted = by_address(
            (server_addresses(each)[0], each)
            for each in {each.stream_id: each for each in ranges}.values()
        )
        parts = await asyncio.gather(
            *(self._call_at(Opcode.DESCRIBE_RANGE, *each) for each in hosted.items())
        )
        return {stream_id: answer for part in parts for stream_id, answer in part.items()}

    async def describe_at(
        self, address: str, ranges: Sequence[StreamRange]
    ) -> dict[int, DescribeRangeResult | SbpError]:
        """Describe ranges at one of their servers, one of each stream, as `describe` does."""
        return await self._call_at(Opcode.DESCRIBE_RANGE, address, ranges)

    async def append_times(
        self, address: str, places: Sequence[tuple[int, int]]
    ) -> list[int | None]:
        """Return when records were appended, in ms; `places` are (stream id, offset) of each.

        None stands for a record that the server does not have (SPEC "LOOKUP_OFFSETS").
        """
        times: list[int | None] = []
        for chunk in chunks(places):
            infos = tuple(
                LookupOffsetInfo(stream_id=stream_id, request_index=at, start_offset=offset)
                for at, (stream_id, offset) in enumerate(chunk)
            )
            request = LookupOffsetsRequest(limits.REQUEST_TIMEOUT_MS, infos)
            call = Call(address, Opcode.LOOKUP_OFFSETS, request, limits.REQUEST_TIMEOUT_MS)
            found: dict[int, int] = {}
            for frame in await self._links.exchange(call):
                response = decode_header(LookupOffsetsResponse, frame.header)
                check_status(response.status)
                for each in response.lookup_responses:
                    if maybe_error(each.status) is None and each.append_time_ms >= 0:
                        found[each.request_index] = each.append_time_ms
            times += map(found.get, range(len(chunk)))
        return times

    async def sync(self, address: str, ranges: Sequence[StreamRange]) -> None:
        """Announce new and sealed ranges to one of their servers (SPEC "SYNC_RANGES")."""
        for chunk in chunks(ranges):
            announced = tuple(StreamRanges(each.stream_id, (each,)) for each in chunk)
            request = SyncRangesRequest(limits.REQUEST_TIMEOUT_MS, announced)
            await self._links.exchange(
                Call(address, Opcode.SYNC_RANGES, request, limits.REQUEST_TIMEOUT_MS)
            )

    async def end_txns(self, address: str, ends: Sequence[TxnEnd]) -> list[Ended | SbpError]:
        """End transactions at a server (SPEC "END_TXN"); return the result of each of `ends`."""
        return await end_txns(self._links, address, ends, timeout_ms=limits.END_TXN_TIMEOUT_MS)

    async def copy_staged(
        self,
        address: str,
        part: TxnPart,
        to_address: str,
        to_range_index: int,
        *,
        is_replica: bool = False,
    ) -> None:
        """Copy the staged batches of a range to another range, perhaps of another server."""
        timeout_ms = limits.END_TXN_TIMEOUT_MS
        await copy_staged(
            *(self._links, address, part, to_address, to_range_index),
            is_replica=is_replica,
            timeout_ms=timeout_ms,
        )

    async def close(self) -> None:
        """Close all connections. Open calls fail; new ones are refused."""
        await self._links.close()

    async def _call_at(
        self, opcode: Opcode, address: str, hosted: Sequence[StreamRange]
    ) -> dict[int, Any]:
        table = RESPONSE_TABLES[opcode]
        answers: dict[int, Any] = {}
        reason: SbpError = ProtocolError("its answer leaves the range out")
        try:
            for chunk in chunks(hosted):
                ids = tuple(RangeId(each.stream_id, each.range_index) for each in chunk)
                request = REQUEST_TABLES[opcode](limits.SEAL_TIMEOUT_MS, ids)
                call = Call(address, opcode, request, limits.SEAL_TIMEOUT_MS)
                for frame in await self._links.exchange(call):
                    response: Any = decode_header(table, frame.header)
                    check_status(response.status)
                    for result in getattr(response, RESULT_FIELDS[table]):
                        answers[result.stream_id] = maybe_error(result.status) or result
        except SbpError as error:
            reason = error
        return {each.stream_id: answers.get(each.stream_id, reason) for each in hosted}


def by_server(ranges: Iterable[StreamRange]) -> dict[str, list[StreamRange]]:
    """Group ranges by the address of each of their servers; an unknown address is empty."""
    return by_address(
        (address, each) for each in ranges for address in dict.fromkeys(server_addresses(each))
    )


def by_address(items: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Group items that come with an address."""
    grouped: dict[str, list[T]] = {}
    for address, item in items:
        grouped.setdefault(address, []).append(item)
    return grouped


def server_addresses(stream_range: StreamRange) -> tuple[str, ...]:
    """Return the addresses of a range's servers, the primary first; an unknown one is empty."""
    servers = (each.server for each in stream_range.servers)
    return tuple((each and each.advertise_addr) or "" for each in servers) or ("",)
