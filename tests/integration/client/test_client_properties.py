"""Properties, and changes that expect a state, of both clients against scripted servers."""

from __future__ import annotations

import pytest

from sbp_core.client import NO_CURSOR, StreamSpec, StreamUpdate
from sbp_core.errors import (
    ConditionFailedError,
    ConfigurationError,
    ConnectionLostError,
    Outcome,
    StatusCode,
    UnsupportedError,
)
from sbp_core.wire.headers import (
    CommitCursorsResponse,
    Cursor,
    DescribeStreamResult,
    DescribeStreamsResponse,
    Feature,
    HeartbeatResponse,
    Status,
    Stream,
    StreamProperty,
    UpdateStreamResult,
    UpdateStreamsResponse,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, ScriptedPeer, reset, status

KNOWN = Stream(7, 3, 60, 2, "orders", 1)


@pytest.fixture
def server(peer: ScriptedPeer) -> ScriptedPeer:
    """A placement driver that knows one stream, and compare-and-set."""
    accepted = (Feature("compare-and-set"),)
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    script_stream(peer)
    return peer


def script_stream(peer: ScriptedPeer) -> None:
    def describe(exchange: Exchange) -> None:
        results = [DescribeStreamResult(KNOWN)] * len(exchange.header.names)
        exchange.answer(DescribeStreamsResponse(describe_responses=tuple(results)))

    peer.script(Opcode.DESCRIBE_STREAMS, describe)


def updated(exchange: Exchange) -> None:
    exchange.answer(UpdateStreamsResponse(update_responses=(UpdateStreamResult(KNOWN),)))


def test_an_update_that_expects_something_is_not_repeated_when_its_answer_is_lost(
    make, server
) -> None:
    server.script(Opcode.UPDATE_STREAMS, reset, updated)
    update = StreamUpdate("orders", properties={"a": None}, expected_properties={"a": "1"})
    driver = make(server.endpoint)
    with pytest.raises(ConnectionLostError) as caught:
        driver.do("update_streams", [update])
    assert caught.value.outcome is Outcome.UNKNOWN
    (exchange,) = server.seen(Opcode.UPDATE_STREAMS)
    assert exchange.header.streams == (
        Stream(
            7,
            retention_period_ms=-1,
            properties=(StreamProperty("a"),),
            expected_properties=(StreamProperty("a", "1"),),
        ),
    ), "nothing else is sent, so that a change of somebody else stays"
    driver.do("update_streams", [update])


def test_an_update_that_expects_nothing_is_repeated(make, server) -> None:
    server.script(Opcode.UPDATE_STREAMS, reset, updated)
    make(server.endpoint).do("update_streams", [StreamUpdate("orders", properties={"a": ""})])
    first, second = server.seen(Opcode.UPDATE_STREAMS)
    assert first.header.streams == second.header.streams
    assert first.header.streams[0].properties == (StreamProperty("a", ""),)


def test_a_condition_that_does_not_hold_is_an_error_of_its_own(make, server) -> None:
    refused = UpdateStreamResult(status=status(StatusCode.CONDITION_FAILED))
    server.script(
        Opcode.UPDATE_STREAMS,
        lambda each: each.answer(UpdateStreamsResponse(update_responses=(refused,))),
    )
    update = StreamUpdate("orders", expected_properties={"a": None}, retention_bytes=1)
    with pytest.raises(ConditionFailedError, match="updating stream 7: scripted") as caught:
        make(server.endpoint).do("update_streams", [update])
    assert caught.value.current_offset is None
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_a_commit_that_expects_something_is_not_repeated_when_its_answer_is_lost(
    make, server
) -> None:
    failed = Status(
        StatusCode.CONDITION_FAILED, "scripted", ConditionFailedError.encode_offset(NO_CURSOR)
    )
    cursors = (Cursor(7, 5), Cursor(3, status=failed))
    server.script(
        Opcode.COMMIT_CURSORS,
        reset,
        lambda each: each.answer(CommitCursorsResponse(cursors=cursors)),
    )
    driver = make(server.endpoint)
    with pytest.raises(ConnectionLostError) as lost:
        driver.do("commit_cursors", "g", {7: 5, 3: 1}, expected={3: 0})
    assert lost.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ConditionFailedError) as caught:
        driver.do("commit_cursors", "g", {7: 5, 3: 1}, expected={3: 0})
    assert caught.value.current_offset == NO_CURSOR
    _, exchange = server.seen(Opcode.COMMIT_CURSORS)
    assert [each.expected_offset for each in exchange.header.cursors] == [-2, 0]
    for expected in ({9: 0}, {3: -2}):
        with pytest.raises(ConfigurationError):
            driver.do("commit_cursors", "g", {7: 5, 3: 1}, expected=expected)


def test_nothing_is_sent_to_a_server_that_would_ignore_a_condition(make, peer) -> None:
    script_stream(peer)
    driver = make(peer.endpoint)
    with pytest.raises(UnsupportedError):
        driver.do("update_streams", [StreamUpdate("orders", expected_properties={"a": None})])
    with pytest.raises(UnsupportedError):
        driver.do("create_streams", [StreamSpec("new", properties={"a": "b"})])
    with pytest.raises(UnsupportedError):
        driver.do("commit_cursors", "g", {7: 5}, expected={7: 4})
    for opcode in (Opcode.UPDATE_STREAMS, Opcode.CREATE_STREAMS, Opcode.COMMIT_CURSORS):
        assert peer.seen(opcode) == []


@pytest.mark.parametrize(
    ("operation", "wrong", "fault"),
    [
        ("create_streams", StreamSpec(5), r"StreamSpec: .* got `int` - at `\$.name`"),
        ("create_streams", StreamSpec("new", "3"), r"Expected `int`, got `str`"),
        ("create_streams", StreamSpec("new", properties={"a": 1}), r"at `\$.properties\[...\]`"),
        ("update_streams", StreamUpdate("orders", properties=None), "StreamUpdate: .*properties"),
        ("update_streams", StreamUpdate("orders", properties={1: "a"}), "`str`, got `int`"),
        ("update_streams", StreamUpdate(1.5), r"StreamUpdate\(stream=1.5"),
    ],
)
def test_a_value_of_another_type_is_refused(make, peer, operation, wrong, fault) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        make(peer.endpoint).do(operation, [wrong])


@pytest.mark.parametrize("value", ["\ud800", "\u20ac" * 342])
def test_a_value_that_no_stream_can_have_is_refused_before_anything_is_sent(
    make, server, value
) -> None:
    with pytest.raises(ConfigurationError, match="the value of property a"):
        make(server.endpoint).do(
            "update_streams", [StreamUpdate("orders", properties={"a": value})]
        )
    assert server.seen(Opcode.UPDATE_STREAMS) == []
