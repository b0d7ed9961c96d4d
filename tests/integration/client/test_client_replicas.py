"""Both clients at ranges that several servers have."""

from __future__ import annotations

import logging
from random import Random

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, RangeInfo, RetryPolicy, StreamBounds, Transaction
from sbp_core.client.io.aio_transport import is_own_endpoint
from sbp_core.client.operations.replicas import Replicas
from sbp_core.errors import (
    ConnectError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    StatusCode,
    StorageError,
)
from sbp_core.records import encode_envelope
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    DescribeRangeResult,
    DescribeRangesResponse,
    Feature,
    HeartbeatResponse,
    SealCause,
    SealRangesResponse,
    SealRangesResult,
    Status,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.scripted_peer import (
    Exchange,
    append_handler,
    fetch_empty,
    fetch_refused,
    fetched,
    item,
    placed,
    ranges,
    reset,
    silent,
    status,
)

SERVERS = ("h:1", "h:2", "h:3")


@pytest.fixture
def cluster(peers):
    """A placement driver, and three range servers that all have stream 1, which is sealed at 9."""
    pd, *servers = (peers() for _ in range(4))
    primary, *others = (each.endpoint for each in servers)
    sealed = placed(1, 0, 0, 9, primary, secondaries=others)
    pd.script(Opcode.LIST_RANGES, ranges(sealed, placed(1, 1, 9, -1, primary, 9, others)))
    return pd, servers


@pytest.mark.parametrize(
    "failure",
    [
        reset,
        fetch_empty,
        fetch_refused(StatusCode.RANGE_NOT_FOUND),
        fetch_refused(StatusCode.RS_DATA_CORRUPTED),
        fetch_refused(StatusCode.RS_SHUTTING_DOWN),
        fetch_refused(StatusCode.OFFSET_OUT_OF_RANGE),
    ],
    ids=["lost", "nothing there", "not settled", "damaged", "stopping", "behind"],
)
def test_a_replica_that_fails_is_passed_over_in_the_same_read(make, cluster, failure, caplog):
    pd, servers = cluster
    for each in servers[:2]:
        each.script(Opcode.FETCH, failure)
    servers[2].script(Opcode.FETCH, fetched)
    caplog.set_level(logging.WARNING, "sbp_core.client")
    driver = make(pd.endpoint, retry=RetryPolicy(budget_ms=0))
    for _ in range(4):
        (outcome,) = driver.fetch([item(1, 3)])
        assert bytes(outcome.payload) == b"data"
    for each in servers[:2]:
        assert len(each.seen(Opcode.FETCH)) <= 1, "it is remembered"
        told = [line for line in caplog.messages if each.endpoint in line.split("cause=")[0]]
        assert len(told) == len(each.seen(Opcode.FETCH))


def test_an_error_that_a_retry_may_cure_stands_for_all(make, cluster):
    pd, servers = cluster
    servers[0].script(Opcode.FETCH, fetch_refused(StatusCode.RS_DATA_CORRUPTED))
    servers[1].script(Opcode.FETCH, fetch_refused(StatusCode.OFFSET_OUT_OF_RANGE))
    servers[2].script(Opcode.FETCH, fetch_refused(StatusCode.RANGE_NOT_FOUND))
    (outcome,) = make(pd.endpoint, retry=RetryPolicy(budget_ms=0)).fetch([item(1, 3)])
    assert isinstance(outcome.error, RangeNotFoundError)
    servers[2].script(Opcode.FETCH, fetch_refused(StatusCode.RS_DATA_CORRUPTED))
    (outcome,) = make(pd.endpoint).fetch([item(1, 3)])
    assert isinstance(outcome.error, StorageError), "records are not said to be gone"


def test_records_are_gone_if_all_replicas_say_so(make, cluster):
    pd, servers = cluster
    detail = OffsetOutOfRangeError.encode_bounds(5, 9)
    for each in servers:
        each.script(Opcode.FETCH, fetch_refused(StatusCode.OFFSET_OUT_OF_RANGE, detail))
        each.script(Opcode.DESCRIBE_RANGE, reset)
    (outcome,) = make(pd.endpoint, retry=RetryPolicy(budget_ms=0)).fetch([item(1, 3)])
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert outcome.error.bounds == (5, 9)


def test_the_open_range_is_read_at_its_primary(make, cluster):
    pd, (primary, *others) = cluster
    primary.script(Opcode.FETCH, reset, lambda each: fetched(each, next_offset=10))
    (outcome,) = make(pd.endpoint).fetch([item(1, 9)])
    assert bytes(outcome.payload) == b"data"
    assert not any(each.seen(Opcode.FETCH) for each in others)


def test_a_read_at_the_tail_goes_on_in_the_range_that_follows(make, peers):
    pd, old, new = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, old.endpoint, secondaries=[new.endpoint])),
        ranges(placed(1, 0, 0, -1, old.endpoint, secondaries=[new.endpoint])),
        ranges(
            placed(1, 0, 0, 7, old.endpoint, secondaries=[new.endpoint]),
            placed(1, 1, 7, -1, new.endpoint),
        ),
    )
    old.close()
    new.script(Opcode.FETCH, lambda each: fetched(each, next_offset=10))
    (outcome,) = make(pd.endpoint).fetch([item(1, 7)], max_wait_ms=100)
    assert bytes(outcome.payload) == b"data"
    assert new.seen(Opcode.FETCH)[0].header.fetch_requests[0].stream_range.range_index == 1


def piece(index: int = 0, end_offset: int | None = 9) -> RangeInfo:
    return RangeInfo(1, index, 0, end_offset, 0, SERVERS)


def test_clients_spread_over_the_replicas_and_each_stays_with_its_own():
    firsts = {Replicas(salt).readers(piece(), 0)[0] for salt in range(50)}
    assert firsts == set(SERVERS)
    one = Replicas(1)
    assert {one.readers(piece(index), 0)[0] for index in range(50)} == set(SERVERS)
    assert one.readers(piece(), 0) == one.readers(piece(), 10**6)
    assert one.readers(piece(end_offset=None), 0) == ["h:1"]


def test_an_outage_is_one_line_of_the_log(caplog):
    replicas = Replicas()
    for now_ms in range(0, 10 * limits.REPLICA_PAUSE_MS, limits.REPLICA_PAUSE_MS):
        replicas.on_failure(piece(), "h:2", ConnectError("refused"), now_ms)
    (line,) = caplog.messages
    assert "replica passed over: server=h:2 stream=1 range=0" in line
    assert "cause=refused" in line
    replicas.on_failure(piece(), "h:2", ConnectError("refused"), 50 * limits.REPLICA_PAUSE_MS)
    assert len(caplog.messages) == 2


def test_a_replica_on_this_machine_comes_first_unless_it_fails():
    for salt in range(20):
        replicas = Replicas(salt, lambda endpoint: endpoint == "h:2")
        assert replicas.readers(piece(), 0)[0] == "h:2"
        replicas.on_failure(piece(), "h:2", ConnectError("x"), 100)
        assert replicas.readers(piece(3), 100)[-1] == "h:2", "it is down for all ranges"
        assert replicas.readers(piece(), 100 + limits.REPLICA_PAUSE_MS)[0] == "h:2"
        replicas.on_failure(piece(), "h:2", RangeNotFoundError.of("x"), 9_000)
        assert replicas.readers(piece(), 9_000)[-1] == "h:2"
        assert replicas.readers(piece(3), 9_000)[0] == "h:2", "it has other ranges"


@pytest.mark.parametrize(
    ("endpoint", "is_own"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("192.0.2.1:1", False),
        ("example.invalid:1", False),
    ],
)
def test_an_endpoint_on_this_machine_is_known_by_its_address(endpoint, is_own):
    assert is_own_endpoint(endpoint) is is_own


def seal_at(*codes: StatusCode):
    """Handlers of SEAL_RANGE at the placement driver; one for each code."""

    def handler(code: StatusCode):
        def handle(exchange: Exchange) -> None:
            results = tuple(
                SealRangesResult(
                    stream_range=placed(each.stream_id, each.range_index + 1, 5, -1, "h:1"),
                    status=status(code),
                    stream_id=each.stream_id,
                )
                for each in exchange.header.ranges
            )
            exchange.answer(SealRangesResponse(seal_responses=results))

        return handle

    return [handler(each) for each in codes]


@pytest.fixture
def two_servers(peers):
    """A placement driver, a primary that is down, and another server that has the next range.

    The range is sealed after `look_count` looks at the placement.
    """
    pd, old, new = peers(), peers(), peers()
    old.close()
    new.script(Opcode.APPEND, append_handler())

    def prepare(look_count: int):
        before = ranges(placed(1, 0, 0, -1, old.endpoint, secondaries=[new.endpoint]))
        after = ranges(
            placed(1, 0, 0, 5, old.endpoint, secondaries=[new.endpoint]),
            placed(1, 1, 5, -1, new.endpoint, secondaries=[old.endpoint]),
        )
        pd.script(Opcode.LIST_RANGES, *[before] * look_count, after)
        pd.script(Opcode.SEAL_RANGE, *seal_at(StatusCode.NONE))
        return pd, old, new

    return prepare


def test_an_append_goes_on_in_the_next_range_if_the_primary_is_down(make, two_servers, caplog):
    pd, old, new = two_servers(2)
    caplog.set_level(logging.WARNING, "sbp_core.client")
    items = [AppendItem(1, b"a"), AppendItem(1, b"b")]
    assert len(make(pd.endpoint).do("append", items)) == 2
    (seal,) = pd.seen(Opcode.SEAL_RANGE)
    assert [(each.stream_id, each.range_index) for each in seal.header.ranges] == [(1, 0)]
    assert seal.header.cause == SealCause.PRIMARY_SILENT
    (append,) = new.seen(Opcode.APPEND)
    assert {each.stream_range.range_index for each in append.header.append_requests} == {1}
    (line,) = caplog.messages
    places = f"old_range=0 old_server={old.endpoint} range=1 server={new.endpoint}"
    assert f"fail-over followed: stream=1 {places}" in line


def test_an_append_without_retries_leaves_the_seal_to_the_next_one(make, two_servers):
    pd, _, new = two_servers(2)
    client = make(pd.endpoint, retry=RetryPolicy(budget_ms=0))
    with pytest.raises(ConnectError):
        client.do("append", [AppendItem(1, b"a")])
    assert not pd.seen(Opcode.SEAL_RANGE)
    client.do("append", [AppendItem(1, b"a")])
    assert len(pd.seen(Opcode.SEAL_RANGE)) == len(new.seen(Opcode.APPEND)) == 1


def test_a_range_with_one_server_is_not_sealed(make, peers):
    pd, old = peers(), peers()
    pd.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, old.endpoint)))
    old.close()
    quick = RetryPolicy(budget_ms=200, backoff_ms=10, backoff_ms_max=20)
    with pytest.raises(ConnectError):
        make(pd.endpoint, retry=quick).do("append", [AppendItem(1, b"a")])
    assert not pd.seen(Opcode.SEAL_RANGE)


@pytest.fixture
def silence(peers, monkeypatch):
    """A placement driver, a primary that is silent, and another server that has all ranges.

    The range of the primary has ended when the placement driver is asked about it again.
    """
    monkeypatch.setattr(limits, "PRIMARY_PATIENCE_MS", 20)
    pd, old, new = peers(), peers(), peers()
    before = placed(1, 0, 0, -1, old.endpoint, secondaries=[new.endpoint])
    after = (
        placed(1, 0, 0, 5, old.endpoint, secondaries=[new.endpoint]),
        placed(1, 1, 5, -1, new.endpoint, 5, secondaries=[old.endpoint]),
    )
    pd.script(Opcode.LIST_RANGES, ranges(before), ranges(*after))
    pd.script(Opcode.SEAL_RANGE, *seal_at(StatusCode.TOO_MANY_REQUESTS))
    return pd, old, new


NEVER_MS = 10**8
STAGES = (Feature("transactions"),)


def opaque_batch():
    return encode_envelope(
        [b"x"], stream_id=0, record_count=1, base_timestamp_ms=0, encoding="opaque"
    )


def test_an_append_does_not_wait_for_a_primary_whose_range_has_ended(make, silence):
    pd, old, new = silence
    old.script(Opcode.APPEND, silent)
    new.script(Opcode.APPEND, append_handler())
    driver = make(pd.endpoint, timeout_ms=NEVER_MS)
    driver.do("append", [AppendItem(1, b"a")], retry_unknown=True)
    seal, *_ = pd.seen(Opcode.SEAL_RANGE)
    assert seal.header.cause == SealCause.PRIMARY_SILENT
    append, *_ = new.seen(Opcode.APPEND)
    assert append.header.append_requests[0].stream_range.range_index == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("seed", range(4))
def test_a_staged_batch_is_not_asked_for_at_the_primary_that_was_silent(make, silence, seed):
    """Whatever the order in which the client asks replicas."""
    pd, old, new = silence
    old.script(Opcode.APPEND, silent)
    new.script(Opcode.APPEND, append_handler())
    for each in (old, new):
        each.script(Opcode.HEARTBEAT, lambda it: it.answer(HeartbeatResponse(features=STAGES)))
    transaction = Transaction("t")
    driver = make(pd.endpoint, timeout_ms=NEVER_MS, random=Random(seed))
    driver.do("append", [AppendItem(1, opaque_batch())], transaction=transaction)
    assert len(old.seen(Opcode.APPEND)) == 1
    append, *_ = new.seen(Opcode.APPEND)
    assert append.header.append_requests[0].stream_range.range_index == 0


def test_an_append_that_is_not_repeated_waits_for_the_primary(make, silence):
    pd, old, new = silence

    def late(exchange):
        until(lambda: len(pd.seen(Opcode.LIST_RANGES)) >= 3)
        append_handler()(exchange)

    old.script(Opcode.APPEND, late)
    (outcome,) = make(pd.endpoint, timeout_ms=NEVER_MS).do("append", [AppendItem(1, b"a")])
    assert outcome.base_offset == 100
    assert not new.seen(Opcode.APPEND)


def test_a_read_does_not_wait_for_a_primary_whose_range_has_ended(make, silence, caplog):
    pd, old, new = silence
    old.script(Opcode.FETCH, silent)
    new.script(Opcode.FETCH, fetched)
    (outcome,) = make(pd.endpoint, timeout_ms=NEVER_MS).fetch([item(1, 3)])
    assert bytes(outcome.payload) == b"data"
    assert "fail-over followed: stream=1 old_range=0" in caplog.text


def test_the_bounds_of_a_stream_do_not_wait_for_a_primary_whose_range_has_ended(make, silence):
    pd, old, new = silence

    def describe(exchange):
        (asked,) = exchange.header.ranges
        found = placed(1, asked.range_index, 5, -1, new.endpoint, 8)
        result = DescribeRangeResult(1, found, Status())
        exchange.answer(DescribeRangesResponse(describe_responses=(result,)))

    old.script(Opcode.DESCRIBE_RANGE, silent)
    new.script(Opcode.DESCRIBE_RANGE, describe)
    driver = make(pd.endpoint, timeout_ms=NEVER_MS)
    assert driver.do("stream_bounds", [1]) == [StreamBounds(1, 0, 8)]


@pytest.mark.parametrize(
    "failures",
    [
        [lambda exchange: exchange.link.peer.close()],
        [
            reset,
            append_handler(n0=StatusCode.RANGE_ALREADY_SEALED),
            append_handler(n0=StatusCode.RANGE_NOT_FOUND),
        ],
    ],
    ids=["down", "restarted without its last entries"],
)
def test_a_staged_batch_in_doubt_is_asked_for_at_the_replicas_of_its_range(make, peers, failures):
    """Its primary is lost with the answer; the others know that it is staged."""
    pd, old, *others = (peers() for _ in range(4))
    endpoints = [each.endpoint for each in others]
    before = ranges(placed(1, 0, 0, -1, old.endpoint, secondaries=endpoints))
    pd.script(
        Opcode.LIST_RANGES,
        before,
        before,
        ranges(
            placed(1, 0, 0, 5, old.endpoint, secondaries=endpoints),
            placed(1, 1, 5, -1, endpoints[0], secondaries=endpoints[1:]),
        ),
    )

    def staged(exchange: Exchange) -> None:
        (info,) = exchange.header.append_requests
        assert (info.stream_range.range_index, info.sequence) == (0, 0)
        result = AppendResult(1, 0, -1, 7, Status())
        exchange.answer(AppendResponse(append_responses=(result,)))

    old.script(Opcode.APPEND, *failures)
    others[0].script(Opcode.APPEND, append_handler(n0=StatusCode.RANGE_NOT_FOUND))
    others[1].script(Opcode.APPEND, staged)
    for each in (*others, old):
        each.script(Opcode.HEARTBEAT, lambda it: it.answer(HeartbeatResponse(features=STAGES)))
    transaction = Transaction("t")
    make(pd.endpoint).do("append", [AppendItem(1, opaque_batch())], transaction=transaction)
    (part,) = transaction.parts()
    assert (part.range_index, part.record_count) == (0, 1)
