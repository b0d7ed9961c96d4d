"""Callers that close their connection while they are served: their resources are released.

Each operation is left at every step of the event loop that it takes, on both event loops.
"""

import asyncio
import itertools

import pytest
import uvloop

from sbp_core import limits
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    CommitCursorsRequest,
    CommitTxnRequest,
    CreateRangeRequest,
    CreateStreamsRequest,
    DescribeRangesRequest,
    DescribeStreamsRequest,
    DescribeTxnsRequest,
    EndTxnInfo,
    EndTxnRequest,
    FetchInfo,
    FetchRequest,
    HeartbeatRequest,
    ListRangesRequest,
    LookupOffsetInfo,
    LookupOffsetsRequest,
    RangeId,
    SealRangesRequest,
    Stream,
    StreamRange,
    TrimStreamsRequest,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.cluster import core_cluster, rows_batch

STEPS = 12
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
NAMES = (f"left-{number}" for number in itertools.count())


def at_driver(stream_id):
    """Requests to a placement driver; some of them make it ask the range server."""
    yield Opcode.HEARTBEAT, HeartbeatRequest(), b""
    yield Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=(Stream(name=next(NAMES)),)), b""
    seal = StreamRange(stream_id=stream_id, range_index=0)
    yield Opcode.CREATE_RANGE, CreateRangeRequest(stream_range=seal), b""
    yield Opcode.SEAL_RANGE, SealRangesRequest(ranges=(RangeId(stream_id, 0),)), b""
    yield Opcode.DESCRIBE_STREAMS, DescribeStreamsRequest(), b""
    yield Opcode.LIST_RANGES, ListRangesRequest(), b""
    yield Opcode.TRIM_STREAMS, TrimStreamsRequest(), b""
    yield Opcode.COMMIT_CURSORS, CommitCursorsRequest(group="g"), b""
    yield Opcode.COMMIT_TXN, CommitTxnRequest(timeout_ms=60_000, producer="p", batch_number=1), b""
    yield Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(), b""


def at_range_server(stream_id):
    """Requests to a range server; unknown streams make it ask the placement driver."""
    batch = rows_batch([b"left"])
    for wanted in (stream_id, 10_000_000):
        info = AppendInfo(stream_id=wanted, batch_length=len(batch))
        yield Opcode.APPEND, AppendRequest(append_requests=(info,)), batch
        for offset in (0, -1):
            fetch = FetchInfo(stream_id=wanted, fetch_offset=offset)
            yield Opcode.FETCH, FetchRequest(max_wait_ms=60_000, fetch_requests=(fetch,)), b""
        yield Opcode.DESCRIBE_RANGE, DescribeRangesRequest(ranges=(RangeId(wanted, 0),)), b""
        yield (
            Opcode.LOOKUP_OFFSETS,
            LookupOffsetsRequest(lookup_requests=(LookupOffsetInfo(wanted),)),
            b"",
        )
        end = EndTxnInfo(wanted, txn_ids=("t",), commit=True)
        yield Opcode.END_TXN, EndTxnRequest(end_requests=(end,)), b""
    yield Opcode.HEARTBEAT, HeartbeatRequest(), b""
    yield Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(), b""


async def leave(endpoint, data, steps):
    """Send a request and be gone `steps` turns of the loop later."""
    host, _, port = endpoint.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    for _ in range(steps):
        await asyncio.sleep(0)
    writer.transport.abort()


async def leave_at_every_step(server, requests):
    listener = server._listener
    own_count = listener.connection_count
    for opcode, header, payload in requests:
        data = b"".join(
            encode_frame(opcode, Flag.REQUEST, 1, encode_header(header), [payload] * bool(payload))
        )
        await asyncio.gather(*(leave(server.endpoint, data, steps) for steps in range(STEPS)))
        try:
            async with asyncio.timeout(20):
                while listener.connection_count > own_count or listener._departed:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                while listener._budget.taken_bytes:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        except TimeoutError:
            pytest.fail(f"{opcode.name} holds {listener._budget.taken_bytes} bytes")
        assert not listener._budget.is_contended
        assert listener._unread.total_bytes == 0


@pytest.mark.parametrize("name", [pytest.param("asyncio", marks=pytest.mark.exhaustive), "uvloop"])
def test_resources_of_callers_are_free_whenever_they_leave(tmp_path, name, caplog):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            item = AppendItem(stream.stream_id, rows_batch([b"first"]))
            await cluster.client.append([item])
            await leave_at_every_step(cluster.server, at_range_server(stream.stream_id))
            await leave_at_every_step(cluster.pd, at_driver(stream.stream_id))
            await cluster.client.append([item])
            await cluster.client.create_streams([StreamSpec("after-all")])

    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        runner.run(asyncio.wait_for(body(), 5 * limits.DRAIN_TIMEOUT_MS / 1000))
    assert "ignores cancellation" not in caplog.text
