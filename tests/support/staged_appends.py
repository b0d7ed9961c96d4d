"""Batches that are staged, and how that ends, over the wire of a small cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager

from core_cluster import core_cluster, rows_batch, values_of
from driver_proof import driver_at

from sbp_core.client import StreamSpec
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    DescribeTxnsRequest,
    EndTxnInfo,
    EndTxnRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    RangeId,
    SealRangesRequest,
    StreamRange,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error


def staged(stream_id, txn_id, *names, first=0, sequences=None, range_index=0, writer=None):
    """The header and the payload of an APPEND that stages batches, a record for each letter."""
    sequences = sequences or range(first, first + len(names))
    batches = [rows_batch([letter.encode() for letter in name], stream_id) for name in names]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=range_index),
            at,
            len(batch),
            stream_id,
            writer,
            sequence,
            txn_id,
        )
        for at, (batch, sequence) in enumerate(zip(batches, sequences, strict=True))
    )
    return AppendRequest(0, infos), batches


async def stage(client, stream_id, txn_id, *names, **options):
    """The base offsets of batches that are staged, or why they are not."""
    request, batches = staged(stream_id, txn_id, *names, **options)
    (answer,) = await client.ask(Opcode.APPEND, request, batches)
    results = sorted(answer.append_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or each.base_offset for each in results]


async def end_all(client, *infos):
    """(base offset, record count) of each END_TXN item, or why it failed."""
    (answer,) = await client.ask(Opcode.END_TXN, EndTxnRequest(0, infos))
    results = sorted(answer.end_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or (each.base_offset, each.record_count) for each in results]


async def end(client, stream_id, *txn_ids, commit=True, range_index=0, count=-1):
    """Send an END_TXN of one item; return its outcome."""
    info = EndTxnInfo(stream_id, 0, txn_ids, commit, range_index, count)
    (outcome,) = await end_all(client, info)
    return outcome


async def read_staged(client, stream_id, txn_id, *, first=0, range_index=0, max_bytes=0):
    """The values that are staged from a batch on, and which batch is next; or why not."""
    info = FetchInfo(
        StreamRange(stream_id=stream_id, range_index=range_index),
        fetch_offset=first,
        batch_max_bytes=max_bytes,
        txn_id=txn_id,
    )
    (frame,) = await client.call(Opcode.FETCH, FetchRequest(30_000, 1, (info,)))
    if frame.is_system_error:
        check_status(decode_system_error(frame.header).status)
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    error = maybe_error(result.status)
    if error is not None:
        return error
    return letters(value for _, value in values_of(frame.payload)), result.next_offset


async def open_txns(client, producer=None):
    """Return the staged transactions of a range server, as (id, range index, records)."""
    answers = await client.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(producer=producer))
    found = [each for answer in answers for each in answer.txns]
    assert {each.state for each in found} <= {"staged"}
    return [
        (part.txn_id, part.range_index, part.record_count) for each in found for part in each.parts
    ]


async def seal(client, stream_id, range_index=-1):
    """Seal a range at its server, as a placement driver does; its end."""
    request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),))
    (answer,) = await client.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    check_status(result.status)
    return result.stream_range.end_offset


@asynccontextmanager
async def one_stream(folder, **options):
    async with core_cluster(folder, **options) as cluster:
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        async with driver_at(cluster.server.endpoint, folder / "rs") as client:
            yield cluster, stream.stream_id, client


async def letters_of(cluster, stream_id):
    """All that a reader sees of a stream."""
    return letters(value for _, value in await cluster.read(stream_id))


def letters(values):
    return b"".join(values).decode()
