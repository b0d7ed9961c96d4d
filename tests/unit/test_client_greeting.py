"""Calls on a client's connection before and after its greeting is answered."""

from __future__ import annotations

import pytest

from sbp_core.client import RequestedFeatures
from sbp_core.client.io.conversation import Conversation, Phase, lost
from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import (
    ConnectError,
    DeadlineExceededError,
    InvalidRequestError,
    NotLeaderError,
    Outcome,
    RequestTimeoutError,
    ShuttingDownError,
    StatusCode,
    ThrottledError,
    UnsupportedError,
)
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import NOTHING, FeatureName
from sbp_core.session.states import RequestReceived
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    Feature,
    HeartbeatResponse,
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import status_for

HEADER = DescribeRangesRequest(0, (RangeId(1, 0),))
DESCRIBE = Call("h:1", Opcode.DESCRIBE_RANGE, HEADER, 5)
PING = Call("h:1", Opcode.PING, None, 5)
LIST = Call("h:1", Opcode.LIST_RANGES, ListRangesRequest(0, (RangeCriteria(stream_id=7),)), 5)
NUMBERED = Call("h:1", Opcode.APPEND, None, 5, feature=FeatureName.IDEMPOTENT_APPEND)
ACCEPTED = HeartbeatResponse(features=(Feature(FeatureName.IDEMPOTENT_APPEND),))


class Duet:
    """A connected client and the server's end of its connection."""

    def __init__(self) -> None:
        self.client = Conversation("h:1", "me", RequestedFeatures())
        self.client.phase = Phase.OPEN
        self.server = Connection()
        (self.greeting,) = self.served(self.client.greeting())

    def served(self, buffers) -> list:
        """The requests that the server receives."""
        self.server.decoder.receive_data(b"".join(buffers))
        return [each.frame for each in self.server.events() if isinstance(each, RequestReceived)]

    def told(self, buffers) -> list:
        """The requests that the client sends when it receives something."""
        data = b"".join(buffers)
        self.client.get_buffer()[: len(data)] = data
        self.client.buffer_updated(len(data))
        return self.served(self.client.receive())

    def greet(self, answer) -> list:
        """The requests that the client sends when its greeting is answered."""
        return self.told(self.server.send_response(self.greeting, encode_header(answer)))


@pytest.fixture
def duet() -> Duet:
    return Duet()


@pytest.mark.parametrize("call", [DESCRIBE, LIST, PING], ids=lambda each: each.opcode.name)
def test_only_calls_that_need_a_feature_wait_for_the_greeting(duet, call) -> None:
    got: list = []
    _, held = duet.client.start(NUMBERED, got.append)
    assert held == []
    (sent,) = duet.served(duet.client.start(call, got.append)[1])
    duet.told(duet.server.send_response(sent))
    assert len(got) == 1
    (asked,) = duet.greet(ACCEPTED)
    duet.told(duet.server.send_response(asked))
    assert len(got) == 2


def test_a_peer_without_the_greeting_is_served_without_features(duet) -> None:
    got: list = []
    (asked,) = duet.served(duet.client.start(DESCRIBE, got.append)[1])
    error = InvalidRequestError(StatusCode.INVALID_REQUEST, "what?")
    duet.told(duet.server.send_system_error(duet.greeting, error))
    duet.told(duet.server.send_response(asked))
    assert [type(each) for each in got] == [Frame]
    assert duet.client.agreement == NOTHING


def test_a_call_that_is_given_up_while_it_is_held_is_never_sent(duet) -> None:
    got: list = []
    abandoned, _ = duet.client.start(NUMBERED, got.append)
    late, _ = duet.client.start(NUMBERED, got.append)
    duet.client.abandon(abandoned)
    assert isinstance(duet.client.expire(late, Opcode.APPEND), DeadlineExceededError)
    assert duet.client.is_finished
    assert duet.greet(ACCEPTED) == got == []


def test_a_call_that_is_given_up_before_there_is_a_connection_is_never_sent() -> None:
    client, server, got = Conversation("h:1", "me", RequestedFeatures()), Connection(), []
    late, nothing = client.start(PING, got.append)
    error = client.expire(late, Opcode.PING)
    assert nothing == []
    assert isinstance(error, ConnectError)
    assert error.outcome is Outcome.NOT_APPLIED
    client.start(NUMBERED, got.append)
    client.start(Call("h:1", Opcode.PING, None, 5, (b"kept",)), got.append)
    server.decoder.receive_data(b"".join([*client.greeting(), *client.on_connected()]))
    sent = [each.frame for each in server.events() if isinstance(each, RequestReceived)]
    assert [(each.opcode, bytes(each.payload)) for each in sent] == [
        (Opcode.HEARTBEAT, b""),
        (Opcode.PING, b"kept"),
    ]
    assert got == []


def test_held_calls_keep_a_retired_connection_until_they_are_answered(duet) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    duet.client.retire()
    assert not duet.client.is_finished
    (held,) = duet.greet(ACCEPTED)
    assert not duet.client.is_finished
    duet.told(duet.server.send_response(held))
    assert duet.client.is_finished
    assert len(got) == 1


def test_held_calls_end_with_the_connection(duet) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    duet.client.end(lost("h:1", "gone"))
    assert [type(each) for each in got] == [ConnectError]
    assert got[0].outcome is Outcome.NOT_APPLIED
    assert duet.client.is_finished


def test_held_calls_are_refused_after_goaway(duet) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    duet.told(duet.server.send_goaway())
    assert duet.greet(ACCEPTED) == []
    assert [type(each) for each in got] == [ShuttingDownError]
    assert duet.client.is_finished
    with pytest.raises(ShuttingDownError):
        duet.client.start(NUMBERED, got.append)


def test_a_connection_that_ends_before_it_is_greeted_has_declined_nothing(duet) -> None:
    duet.client.end(lost("h:1", "gone"))
    with pytest.raises(ConnectError, match=r"nothing was sent to h:1.*gone"):
        duet.client.start(NUMBERED, lambda _: None)


def test_goaway_before_the_greeting_is_answered_declines_nothing(duet) -> None:
    duet.told(duet.server.send_goaway())
    with pytest.raises(ShuttingDownError):
        duet.client.start(NUMBERED, lambda _: None)


@pytest.mark.parametrize(
    "error",
    [
        ThrottledError(StatusCode.TOO_MANY_REQUESTS, "full"),
        ShuttingDownError(StatusCode.RS_SHUTTING_DOWN, "going"),
        RequestTimeoutError(StatusCode.REQUEST_TIMEOUT, "late"),
    ],
)
@pytest.mark.parametrize("is_system_error", [True, False])
def test_a_server_that_cannot_greet_now_has_declined_nothing(duet, error, is_system_error) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    if is_system_error:
        duet.told(duet.server.send_system_error(duet.greeting, error))
    else:
        duet.greet(HeartbeatResponse(status=status_for(error)))
    assert [type(each) for each in got] == [ConnectError]
    assert error.message in str(got[0])
    assert not duet.client.is_usable


def test_a_call_that_was_sent_gets_its_answer_though_the_greeting_is_refused(duet) -> None:
    got: list = []
    (asked,) = duet.served(duet.client.start(LIST, got.append)[1])
    error = ThrottledError(StatusCode.TOO_MANY_REQUESTS, "full")
    duet.told(duet.server.send_system_error(duet.greeting, error))
    assert not duet.client.is_finished
    with pytest.raises(ConnectError, match=r"nothing was sent.*full"):
        duet.client.start(LIST, got.append)
    duet.told(duet.server.send_response(asked))
    assert [type(each) for each in got] == [Frame]
    assert duet.client.is_finished


def test_a_server_that_does_not_lead_has_answered_the_greeting(duet) -> None:
    error = NotLeaderError(StatusCode.PD_NOT_LEADER, "ask another")
    duet.greet(HeartbeatResponse(status=status_for(error)))
    assert duet.client.is_usable


def test_a_server_that_declines_has_declined(duet) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    assert duet.greet(HeartbeatResponse()) == []
    assert [type(each) for each in got] == [UnsupportedError]
