"""The clients and our servers in the dialect elasticstream-2023-04, over real sockets."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sbp_core.client import (
    EARLIEST,
    LATEST,
    AppendItem,
    FetchItem,
    StreamSpec,
    StreamUpdate,
)
from sbp_core.errors import InvalidRequestError, NotFoundError, OffsetOutOfRangeError
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import SystemClock
from sbp_core.session.negotiation import Wishes, offer
from sbp_core.wire.dialect import Dialect, ServerRole, Speech
from sbp_core.wire.headers import (
    AppendRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.cluster import values_of
from tests.support.data.batches import sequence_batch
from tests.support.wire import RawClient

pytestmark = pytest.mark.dialect

MIB = 1 << 20


@pytest.fixture
def driver(make, foreign_cluster):
    return make(foreign_cluster.endpoint)


def new_streams(driver, count, *names):
    wanted = [StreamSpec(name) for name in names or [None] * count]
    return [info.stream_id for info in driver.do("create_streams", wanted)]


def item(stream_id, offset=0, end=None, max_bytes=MIB):
    return FetchItem(stream_id, offset, end, max_bytes)


def append(driver, *batches):
    outcomes = driver.do(
        "append", [AppendItem(stream_id, sequence_batch(values)) for stream_id, values in batches]
    )
    return [outcome.base_offset for outcome in outcomes]


def fetched(driver, *items, **options):
    """(records, next offset) of each item, in the order of the items."""
    outcomes = sorted(driver.fetch(items, **options), key=lambda each: each.item_index)
    assert [each.error for each in outcomes] == [None] * len(items)
    return [(values_of(each.payload), each.next_offset) for each in outcomes]


def read_all(driver, ends):
    """All values of streams, given where each ends, by as many fetches as it takes."""
    found = {stream_id: [] for stream_id in ends}
    while missing := [each for each in ends if len(found[each]) < ends[each]]:
        items = [item(each, len(found[each])) for each in missing]
        for stream_id, (records, _) in zip(missing, fetched(driver, *items), strict=True):
            assert [at for at, _ in records] == [
                len(found[stream_id]) + index for index in range(len(records))
            ]
            found[stream_id] += [value for _, value in records]
    return found


def test_three_streams_in_a_frame_each_way(driver):
    one, two, three = new_streams(driver, 3)
    batches = [(one, [b"a", b"b"]), (two, [b"c"]), (three, [b"d"]), (one, [b"e"])]
    assert append(driver, *batches) == [0, 0, 0, 2]
    assert fetched(driver, item(three), item(one, 2), item(two)) == [
        ([(0, b"d")], 1),
        ([(2, b"e")], 3),
        ([(0, b"c")], 1),
    ]


def test_more_than_fits_in_a_frame_comes_in_several(driver):
    streams = new_streams(driver, 3)
    values = [[b"%d-%d-" % (each, n) + bytes(200_000) for n in range(12)] for each in streams]
    for stream_id, mine in zip(streams, values, strict=True):
        append(driver, *((stream_id, [value]) for value in mine))
    assert read_all(driver, dict.fromkeys(streams, 12)) == dict(zip(streams, values, strict=True))
    large = fetched(driver, *(item(each, max_bytes=8 * MIB) for each in streams))
    assert [next_offset for _, next_offset in large] == [12, 12, 12]


def test_either_end_and_an_offset_inside_a_batch(driver):
    (stream_id,) = new_streams(driver, 1)
    append(driver, (stream_id, [b"a", b"b", b"c"]))
    whole = [(0, b"a"), (1, b"b"), (2, b"c")]
    assert fetched(driver, item(stream_id, EARLIEST), item(stream_id, 2)) == [(whole, 3)] * 2
    assert fetched(driver, item(stream_id, LATEST), item(stream_id, 0, end=1)) == [
        ([], 3),
        (whole, 3),
    ]
    (outcome,) = driver.fetch([item(stream_id, 4)])
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert outcome.error.bounds == (0, 3)


def test_waiting_at_the_tail_ends_with_what_is_appended(driver, foreign_cluster):
    hot, cold = new_streams(driver, 2)
    append(driver, (hot, [b"hot"]))
    found = []

    def wait() -> None:
        found.extend(fetched(driver, item(cold), item(hot), max_wait_ms=30_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    writer = BlockingDriver(foreign_cluster.endpoint)
    append(writer, (cold, [b"cold"]))
    waiting.join(30)
    writer.close()
    assert found == [([(0, b"cold")], 1), ([(0, b"hot")], 1)]


def test_nothing_comes_when_the_wait_is_over(driver):
    (stream_id,) = new_streams(driver, 1)
    assert fetched(driver, item(stream_id), max_wait_ms=100) == [([], 0)]


def test_a_sealed_stream_goes_on_in_its_next_range(driver):
    (stream_id,) = new_streams(driver, 1)
    append(driver, (stream_id, [b"a", b"b"]))
    opened = driver.do("seal_streams", [stream_id])[stream_id]
    assert (opened.range_index, opened.start_offset) == (1, 2)
    assert append(driver, (stream_id, [b"c"])) == [2]
    assert fetched(driver, item(stream_id)) == [([(0, b"a"), (1, b"b")], 2)]
    assert fetched(driver, item(stream_id, 2), max_wait_ms=30_000) == [([(2, b"c")], 3)]
    (bounds,) = driver.do("stream_bounds", [stream_id])
    assert (bounds.start_offset, bounds.next_offset) == (0, 3)


def test_a_writer_follows_a_seal_that_it_did_not_see(driver, foreign_cluster):
    (stream_id,) = new_streams(driver, 1)
    append(driver, (stream_id, [b"a"]))
    other = BlockingDriver(foreign_cluster.endpoint)
    other.do("seal_streams", [stream_id])
    other.close()
    assert append(driver, (stream_id, [b"b"])) == [1]


def test_trim_bounds_what_can_be_read(driver):
    (stream_id,) = new_streams(driver, 1)
    append(driver, (stream_id, [b"a"]), (stream_id, [b"b"]), (stream_id, [b"c"]))
    smallest = driver.do("trim_streams", {stream_id: 2})[stream_id]
    assert smallest.start_offset == 2
    (outcome,) = driver.fetch([item(stream_id, 1)])
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert outcome.error.bounds == (2, 3)
    assert fetched(driver, item(stream_id, EARLIEST)) == [([(2, b"c")], 3)]
    with pytest.raises(OffsetOutOfRangeError):
        driver.do("trim_streams", {stream_id: 99})


def test_our_servers_know_names_in_every_dialect(driver):
    (number,) = new_streams(driver, 1)
    name, other = f"orders-{number}", f"bills-{number}"
    (stream_id,) = new_streams(driver, 1, name)
    assert driver.do("describe_streams", [name])[0].stream_id == stream_id
    (updated,) = driver.do("update_streams", [StreamUpdate(name, other, 1000)])
    assert (updated.name, updated.retention_period_ms) == (other, 1000)
    with pytest.raises(NotFoundError, match=name):
        driver.do("describe_streams", [name, stream_id])
    assert other in [info.name for info in driver.do("list_streams")]


def test_a_deleted_stream_is_no_longer_found(driver):
    gone, kept = new_streams(driver, 2)
    append(driver, (gone, [b"a"]), (kept, [b"b"]))
    driver.do("delete_streams", [gone])
    for method in ("stream_bounds", "list_ranges", "describe_streams"):
        with pytest.raises(NotFoundError, match=str(gone)):
            driver.do(method, [gone, kept])
    with pytest.raises(NotFoundError):
        append(driver, (gone, [b"a"]))
    assert fetched(driver, item(kept)) == [([(0, b"b")], 1)]


def test_thousands_of_streams_are_made_listed_and_described(driver):
    streams = new_streams(driver, 2_500)
    listed = driver.do("list_ranges", streams)
    assert [ranges[0].stream_id for ranges in listed.values()] == streams
    bounds = driver.do("stream_bounds", streams)
    assert [each.stream_id for each in bounds] == streams


def test_a_bad_batch_is_refused_as_ever(driver):
    (stream_id,) = new_streams(driver, 1)
    cut_off = sequence_batch([b"bad"])[:-1]
    items = [AppendItem(stream_id, batch) for batch in (sequence_batch([b"a"]), cut_off)]
    with pytest.raises(InvalidRequestError, match="1 of 2 batches were appended"):
        driver.do("append", items)
    assert append(driver, (stream_id, [b"b"])) == [1]


def test_no_feature_is_agreed_on(foreign_cluster):
    async def body():
        for endpoint in (foreign_cluster.endpoint, *foreign_cluster.range_servers):
            async with RawClient.at(endpoint) as client:
                beat = HeartbeatRequest("c", features=offer(Wishes(compression=True)))
                for _ in range(2):
                    (frame,) = await client.call(Opcode.HEARTBEAT, beat)
                    answer = decode_header(HeartbeatResponse, frame.header)
                    assert (answer.features, frame.flags) == ((), 0x03)
                    assert answer.status.handler_duration_us == -1

    asyncio.run(body())


@pytest.mark.parametrize(
    ("role", "code"), [(ServerRole.PLACEMENT_DRIVER, 1500), (ServerRole.RANGE_SERVER, 2500)]
)
def test_a_bug_of_a_server_has_its_own_code(role, code):
    async def fail(call):
        raise RuntimeError("a bug")

    async def body():
        speech = Speech(role, Dialect.ELASTICSTREAM_2023_04)
        listener = Listener({Opcode.APPEND: fail}, speech=speech, clock=SystemClock())
        port = await listener.start("127.0.0.1", 0)
        async with RawClient("127.0.0.1", port) as client:
            (frame,) = await client.call(Opcode.APPEND, AppendRequest())
            assert decode_system_error(frame.header).status.code == code
        await listener.drain()

    asyncio.run(body())
