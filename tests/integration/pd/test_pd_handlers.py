"""The placement driver over a real connection: servers, ranges, start and stop."""

import pytest
from sqlalchemy import text

from sbp_core import limits
from sbp_core.errors import StatusCode
from sbp_core.wire.headers import Stream
from tests.support.placement_driver import by_server, by_stream, runner


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


# HEARTBEAT, ALLOCATE_ID, DESCRIBE_PD_CLUSTER


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "10.0.0.1", ":10911", "h:0", "h:65536", "h:", "::1:10911", "[::1]"),
        *(
            "h:1\n",
            "h\x00:1",
            "\u202eh:1",
            "a b:1",
            "h:-1",
            "h:\u0661",
            "[h:1]:1",
            "h" * 300 + ":1",
        ),
    ],
)
def test_a_server_must_announce_host_and_port(run, address):
    async def test(cluster):
        answer = await cluster.beat(await cluster.allocate(), address)
        assert answer.status.code == StatusCode.INVALID_REQUEST
        assert answer.status.message.isprintable()
        assert len(answer.status.message) < 1000
        assert cluster.driver.live_server_count == 0

    run(test)


def test_a_server_of_an_earlier_version_needs_no_secret_and_keeps_its_place(run):
    async def test(cluster):
        server_id = await cluster.allocate()

        def forget(store):
            with store.database.transaction():
                store.database.change(text("DELETE FROM server_secrets"))

        await cluster.driver._store.run(forget)
        assert (await cluster.beat(server_id, "h:1")).status.code == 0
        moved = await cluster.beat(server_id, "h:2")
        assert moved.status.code == StatusCode.CONFLICT
        assert "15000 ms" in moved.status.message
        unnamed = await cluster.beat(server_id, "h:1", cluster_id=None)
        assert unnamed.status.code == StatusCode.INVALID_REQUEST
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS)
        assert (await cluster.beat(server_id, "h:2")).status.code == 0
        assert (await cluster.beat(server_id, "h:2", server_secret="mine")).status.code == 0
        for secret in (None, "other"):
            refused = await cluster.beat(server_id, "h:2", server_secret=secret)
            assert refused.status.code == StatusCode.PERMISSION_DENIED
            assert "mine" not in refused.status.message

    run(test)


# LIST_RANGES


def test_a_server_with_many_ranges_has_several_results(run):
    async def test(cluster):
        server_id = await cluster.add_server()
        count = 2 * limits.RESULTS_PER_FRAME
        created = await cluster.create(*[Stream()] * count)
        answers = await cluster.list(by_server(server_id), by_stream(1))
        results = [result for answer in answers for result in answer.list_responses]
        assert all(
            sum(len(result.ranges) for result in answer.list_responses) <= limits.RESULTS_PER_FRAME
            for answer in answers
        )
        *mine, last = results
        assert {result.range_owner.range_server.server_id for result in mine} == {server_id}
        listed = [each.stream_id for result in mine for each in result.ranges]
        assert listed == [result.stream.stream_id for result in created]
        assert last.range_owner.range_server is None
        assert [each.stream_id for each in last.ranges] == [1]

    run(test)


# CREATE_RANGE


# The server
