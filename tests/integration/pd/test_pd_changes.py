"""UPDATE_STREAMS, TRIM_STREAMS and REPORT_METRICS at a placement driver, over a real connection."""

import itertools

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.model import RangeRecord, SealedRange
from sbp_core.wire.headers import (
    RangeServer,
    ReportMetricsRequest,
    Stream,
    TrimmedStream,
    TrimStreamsRequest,
    UpdateStreamsRequest,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.placement_driver import by_stream, codes, runner


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


async def update(cluster, *streams):
    answers = await cluster.client.ask(
        Opcode.UPDATE_STREAMS, UpdateStreamsRequest(streams=tuple(streams))
    )
    return [result for answer in answers for result in answer.update_responses]


async def trim(cluster, *items):
    request = TrimStreamsRequest(trimmed_streams=tuple(TrimmedStream(*item) for item in items))
    answers = await cluster.client.ask(Opcode.TRIM_STREAMS, request)
    return [result for answer in answers for result in answer.streams]


async def revision(cluster):
    return (await cluster.list(by_stream(1)))[-1].revision


async def report(cluster, server_id, address, **figures):
    request = ReportMetricsRequest(
        range_server=RangeServer(server_id=server_id, advertise_addr=address), **figures
    )
    (answer,) = await cluster.client.ask(Opcode.REPORT_METRICS, request)
    return answer


def bounds(result):
    piece = result.stream_range
    return piece.range_index, piece.start_offset, piece.end_offset


def store_sealed_ranges(cluster, stream_id, *ends):
    """Seal the stream's ranges at these ends, behind the back of range servers; all sealed."""

    def work(store):
        store.seal_ranges([SealedRange(stream_id, 0, ends[0])])
        for index, (start, end) in enumerate(itertools.pairwise(ends), 1):
            assert store.create_ranges([RangeRecord(stream_id, index, start, end, 1, (1,))]) == [
                True
            ]

    return cluster.driver._store.run(work)


# UPDATE_STREAMS


def test_a_client_without_the_limit_in_bytes_keeps_it(run):
    async def test(cluster):
        await cluster.add_server()
        unlimited, made = await cluster.create(Stream(), Stream(retention_bytes=7))
        assert unlimited.stream.retention_bytes == 0
        for change, expected in (
            (Stream(retention_period_ms=9), 7),
            (Stream(retention_bytes=0), 0),
        ):
            (result,) = await update(cluster, replace(change, stream_id=made.stream.stream_id))
            assert result.status.code == StatusCode.NONE
            assert result.updated_stream.retention_bytes == expected

    run(test)


def test_each_item_of_an_update_fails_by_itself(run):
    async def test(cluster):
        await cluster.add_server()
        a, b = [await cluster.created_id(name) for name in "ab"]
        results = await update(
            cluster,
            Stream(stream_id=404, retention_period_ms=1),
            Stream(stream_id=a, name="b", retention_period_ms=1),
            Stream(stream_id=a, replica_nums=limits.REPLICAS_MAX + 1),
            Stream(stream_id=a, ack_count=2),
            Stream(stream_id=a, retention_period_ms=-1),
            Stream(stream_id=a, retention_bytes=-2),
            Stream(stream_id=a, name="no spaces"),
            Stream(),
            Stream(stream_id=b, name="c", retention_period_ms=7),
            Stream(stream_id=a, name="b", retention_period_ms=8),
            Stream(stream_id=a, name="b", retention_period_ms=8),
        )
        assert codes(results) == [
            StatusCode.NOT_FOUND,
            StatusCode.CONFLICT,
            *[StatusCode.INVALID_REQUEST] * 5,
            StatusCode.NOT_FOUND,
            *[StatusCode.NONE] * 3,
        ]
        found = await cluster.describe(stream_ids=(a, b))
        assert [(each.stream.name, each.stream.retention_period_ms) for each in found] == [
            ("b", 8),
            ("c", 7),
        ]

    run(test)


# TRIM_STREAMS


def test_the_tail_of_an_open_range_is_asked_of_its_server(run):
    async def test(cluster):
        await cluster.add_server("127.0.0.1:1")
        stream_id = await cluster.created_id("a")
        (unknown, start) = await trim(cluster, (stream_id, 5), (stream_id, 0))
        assert unknown.status.code == StatusCode.PD_NO_AVAILABLE_RS
        assert "127.0.0.1:1" in unknown.status.message
        assert bounds(start) == (0, 0, -1)

    run(test)


# REPORT_METRICS


def test_a_report_keeps_a_server_alive_and_its_identity_is_checked(run):
    async def test(cluster):
        server_id = await cluster.add_server("h:1")
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS - 1)
        answer = await report(cluster, server_id, "h:1", disk_free_space=1 << 40)
        assert (answer.status.code, answer.range_server.server_id) == (0, server_id)
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS - 1)
        assert cluster.driver.live_server_count == 1
        for wrong in (99, -1):
            refused = await report(cluster, wrong, "h:2", disk_free_space=1)
            assert refused.status.code == StatusCode.INVALID_REQUEST
        (refused,) = await cluster.client.ask(Opcode.REPORT_METRICS, ReportMetricsRequest())
        assert isinstance(maybe_error(refused.status), InvalidRequestError)

    run(test)
