"""UPDATE_STREAMS, TRIM_STREAMS and REPORT_METRICS at a placement driver, over a real connection."""

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
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
from tests.support.placement_driver import runner


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


async def report(cluster, server_id, address, **figures):
    request = ReportMetricsRequest(
        range_server=RangeServer(server_id=server_id, advertise_addr=address), **figures
    )
    (answer,) = await cluster.client.ask(Opcode.REPORT_METRICS, request)
    return answer


def bounds(result):
    piece = result.stream_range
    return piece.range_index, piece.start_offset, piece.end_offset


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
