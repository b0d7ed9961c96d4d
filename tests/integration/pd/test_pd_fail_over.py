"""Seals that follow from faults: which primaries are lost, and how often a stream goes on."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.errors import RangeNotFoundError, StatusCode
from sbp_core.pd.streams.fail_over import missing_replicas
from sbp_core.pd.streams.sealing import SEAL_BACKOFF_MS, SEAL_BACKOFF_MS_MAX, SealBackoff
from sbp_core.wire.headers import (
    DescribeRangeResult,
    DescribeRangesResponse,
    SealCause,
    Status,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import ManualClock
from tests.support.placement_driver import (
    add_servers,
    becomes,
    create,
    fenced,
    ids,
    range_server,
    ranges_of,
    run,
    seal,
)
from tests.support.scripted_peer import silent

A = b"a" * 16
NO_END = -1


@pytest.fixture
def peers():
    made = [range_server() for _ in range(4)]
    yield made
    for each in made:
        each.close()


QUICK_LOOKS = {"fail_over_interval_ms": 0}
"""Silent primaries are looked for in each turn of the event loop."""


def test_streams_go_on_without_a_primary_that_is_silent(tmp_path, peers, caplog):
    async def test(cluster):
        server_ids = await add_servers(cluster, peers)
        stream, first = await create(cluster, replica_nums=3)
        alone = [await create(cluster) for _ in server_ids]
        assert {*ids(first)} == {each for _, one in alone for each in ids(one)}
        for peer in peers:
            peer.script(Opcode.SEAL_RANGE, fenced(3, A, 30))
        old = ids(first)[0]
        timeout_ms = limits.HEARTBEAT_TIMEOUT_MS
        for elapsed_ms in (timeout_ms - 1, timeout_ms):
            cluster.clock.advance(elapsed_ms)
            for server_id, peer in zip(server_ids, peers, strict=False):
                if server_id != old:
                    await cluster.beat(server_id, peer.endpoint)
        await becomes(lambda: has(cluster, stream.stream_id, 2))
        sealed, opened = await ranges_of(cluster, stream.stream_id)
        assert (sealed.end_offset, sealed.end_seq, opened.start_offset) == (30, 3, 30)
        assert {*ids(opened)} == {*server_ids} - {old}
        for one, _ in alone:
            assert await has(cluster, one.stream_id, 1)
        text = f"stream={stream.stream_id} range=0"
        await becomes(lambda: logged(f"fail-over ended {text} old_primary={old} next_range=1"))
        assert f"fail-over began {text} primary={old}" in caplog.text
        missing = await cluster.driver._store.run(missing_replicas)
        assert missing == {stream.stream_id: 1}
        await cluster.beat(old, peers[server_ids.index(old)].endpoint)
        await becomes(lambda: later(cluster, stream.stream_id))
        assert {*ids((await ranges_of(cluster, stream.stream_id))[-1])} == {*server_ids}
        assert await cluster.driver._store.run(missing_replicas) == {}

    async def later(cluster, stream_id):
        cluster.clock.advance(100)
        return await has(cluster, stream_id, 3)

    async def has(cluster, stream_id, count):
        return len(await ranges_of(cluster, stream_id)) == count

    async def logged(text):
        return text in caplog.text

    run(tmp_path, test, **QUICK_LOOKS)


def test_a_placement_driver_waits_for_heartbeats_after_its_start(tmp_path, peers):
    async def before(cluster):
        server_ids = await add_servers(cluster, peers)
        stream, first = await create(cluster, replica_nums=3)
        return server_ids, stream.stream_id, ids(first)[0]

    async def test(cluster):
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS - 1)
        for server_id, peer in zip(server_ids, peers, strict=False):
            if server_id != primary:
                await cluster.beat(server_id, peer.endpoint)
        for _ in range(100):
            await asyncio.sleep(0)
        assert all(peer.seen(Opcode.SEAL_RANGE) == [] for peer in peers)
        cluster.clock.advance(1)

        async def has_next():
            return len(await ranges_of(cluster, stream_id)) == 2

        await becomes(has_next)

    for peer in peers:
        peer.script(Opcode.SEAL_RANGE, fenced(3, A, 30))
    server_ids, stream_id, primary = run(tmp_path, before, **QUICK_LOOKS)
    run(tmp_path, test, **QUICK_LOOKS)


def serving(exchange):
    """A handler: DESCRIBE_RANGE of a primary that serves its ranges."""
    results = tuple(
        DescribeRangeResult(
            each.stream_id, StreamRange(each.stream_id, each.range_index, 0, NO_END, 7), Status()
        )
        for each in exchange.header.ranges
    )
    exchange.answer(DescribeRangesResponse(describe_responses=results))


async def primary_of(cluster, peers, **fields):
    """A stream on three servers: its id, and the primary of its first range with its id."""
    server_ids = await add_servers(cluster, peers)
    stream, first = await create(cluster, **({"replica_nums": 3} | fields))
    for peer in peers:
        peer.script(Opcode.SEAL_RANGE, fenced(3, A, 30))
    return stream.stream_id, peers[server_ids.index(ids(first)[0])], ids(first)[0]


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_primary_that_misses_heartbeats_is_asked_first(tmp_path, peers, is_paused):
    """One that says how often it sends them does not get the whole timeout."""

    async def test(cluster):
        stream_id, primary, server_id = await primary_of(cluster, peers)
        primary.script(Opcode.DESCRIBE_RANGE, silent if is_paused else serving)
        answer = await cluster.beat(server_id, primary.endpoint, interval_ms=100)
        assert answer.interval_ms == 100
        cluster.clock.advance(199)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not primary.seen(Opcode.DESCRIBE_RANGE)
        cluster.clock.advance(1)
        await becomes(lambda: looked(primary))
        if is_paused:
            await becomes(lambda: has_next(cluster, stream_id))
            assert server_id not in ids((await ranges_of(cluster, stream_id))[1])
        else:
            await becomes(lambda: looked_later(cluster, primary, 2))
            assert not primary.seen(Opcode.SEAL_RANGE)

    async def looked_later(cluster, primary, count):
        cluster.clock.advance(2)  # the pause counts from the answer to the first look
        return await looked(primary, count)

    async def looked(primary, count=1):
        return len(primary.seen(Opcode.DESCRIBE_RANGE)) >= count

    async def has_next(cluster, stream_id):
        return len(await ranges_of(cluster, stream_id)) == 2

    run(tmp_path, test, **QUICK_LOOKS, fail_over_after_ms=300)


@pytest.mark.parametrize(
    ("answer", "is_sealed"),
    [
        (serving, False),
        (silent, True),
        (lambda each: each.link.close(), True),
        (lambda each: each.fail(RangeNotFoundError.of("it is not the primary any more")), True),
    ],
    ids=["serves", "silent", "unreachable", "restarted"],
)
def test_a_range_that_its_primary_serves_goes_on(tmp_path, peers, answer, is_sealed):
    async def test(cluster):
        stream_id, primary, _ = await primary_of(cluster, peers)
        primary.script(Opcode.DESCRIBE_RANGE, answer)
        result = await seal(cluster, stream_id, cause=SealCause.PRIMARY_SILENT)
        assert (result.stream_range is not None) == is_sealed
        if not is_sealed:
            assert result.status.code == StatusCode.TOO_MANY_REQUESTS
            assert "answers the placement driver" in result.status.message
        assert len(await ranges_of(cluster, stream_id)) == 1 + is_sealed
        again = await seal(cluster, stream_id, cause=SealCause.REQUESTED)
        assert again.stream_range.range_index == 1

    run(tmp_path, test, fail_over_after_ms=300)


def test_a_stream_does_not_leave_one_range_after_the_other(tmp_path, peers):
    """Its primary may name a secondary that is half dead as the reason for ever."""

    async def test(cluster):
        stream_id, *_ = await primary_of(cluster, peers)
        for index, wait_ms in enumerate((0, 1_000, 2_000)):
            for elapsed_ms in (max(0, wait_ms - 1), min(1, wait_ms)):
                cluster.clock.advance(elapsed_ms)
                result = await seal(cluster, stream_id, index, SealCause.REPLICA_LACKING)
                if elapsed_ms > 1:
                    assert result.status.code == StatusCode.TOO_MANY_REQUESTS
            assert result.stream_range.range_index == index + 1
        ordered = await seal(cluster, stream_id, 3)
        assert ordered.stream_range.range_index == 4

    run(tmp_path, test)


def test_a_range_in_which_nothing_can_be_appended_is_left_without_a_pause(tmp_path, peers):
    """One of its two servers has stopped, and an append needs both."""

    async def test(cluster):
        server_ids = await add_servers(cluster, peers)
        stream, _ = await create(cluster, replica_nums=2, ack_count=2)
        for peer in peers:
            peer.script(Opcode.SEAL_RANGE, fenced(0, b"", 0))
        again = await seal(cluster, stream.stream_id, 0, SealCause.REPLICA_LACKING)
        refused = await seal(cluster, stream.stream_id, 1, SealCause.REPLICA_LACKING)
        assert refused.status.code == StatusCode.TOO_MANY_REQUESTS
        lost = ids(again.stream_range)[1]
        await cluster.beat(lost, peers[server_ids.index(lost)].endpoint, is_leaving=True)
        left = await seal(cluster, stream.stream_id, 1, SealCause.REPLICA_LACKING)
        assert left.stream_range.range_index == 2
        assert lost not in ids(left.stream_range)

    run(tmp_path, test)


def test_the_pause_between_ranges_of_a_stream_grows_and_is_forgotten():
    clock = ManualClock()
    backoff = SealBackoff(clock)
    waits_ms = []
    for _ in range(9):
        assert backoff.maybe_wait_ms(1) is None
        waits_ms.append(backoff.maybe_wait_ms(1))
        clock.advance(waits_ms[-1])
    assert waits_ms == [*(1_000 << number for number in range(6)), *[60_000] * 3]
    assert backoff.maybe_wait_ms(2) is None
    clock.advance(2 * SEAL_BACKOFF_MS_MAX)
    assert backoff.maybe_wait_ms(1) is None
    assert backoff.maybe_wait_ms(1) == SEAL_BACKOFF_MS


def test_a_fail_over_may_exceed_the_ranges_of_a_stream(tmp_path, peers):
    """Else nothing could be appended until somebody trims."""

    async def test(cluster):
        stream_id, primary, _ = await primary_of(cluster, peers)
        primary.close()
        for cause in (SealCause.REQUESTED, SealCause.REPLICA_LACKING):
            refused = await seal(cluster, stream_id, cause=cause)
            assert refused.status.code == StatusCode.INVALID_REQUEST
            assert "ranges_per_stream_max" in refused.status.message
        result = await seal(cluster, stream_id, cause=SealCause.PRIMARY_SILENT)
        assert result.stream_range.range_index == 1

    run(tmp_path, test, ranges_per_stream_max=1)
