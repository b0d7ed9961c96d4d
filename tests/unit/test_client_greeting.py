"""Calls on a client's connection before and after its greeting is answered."""

from __future__ import annotations

import pytest

from sbp_core.client import Wishes
from sbp_core.client.io.conversation import Conversation, Phase, lost
from sbp_core.client.programs.program import Call
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
    DeleteStreamsRequest,
    DescribeRangesRequest,
    Feature,
    HeartbeatRequest,
    HeartbeatResponse,
    ListRangesRequest,
    ListRangesResponse,
    RangeCriteria,
    RangeId,
    Status,
    SystemErrorResponse,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import status_for

HEADER = DescribeRangesRequest(0, (RangeId(1, 0),))
DESCRIBE = Call("h:1", Opcode.DESCRIBE_RANGE, HEADER, 5)
PING = Call("h:1", Opcode.PING, None, 5)
LIST = Call("h:1", Opcode.LIST_RANGES, ListRangesRequest(0, (RangeCriteria(stream_id=7),)), 5)
LISTED = ListRangesResponse(status=Status(1200))
DELETE = Call("h:1", Opcode.DELETE_STREAMS, DeleteStreamsRequest(), 5, only_ours=True)
NUMBERED = Call("h:1", Opcode.APPEND, None, 5, feature=FeatureName.IDEMPOTENT_APPEND)
FOREIGN = HeartbeatResponse(status=Status(1200))


class Duet:
    """A connected client and the server's end of its connection."""

    def __init__(self) -> None:
        self.client = Conversation("h:1", "me", Wishes())
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


@pytest.mark.parametrize("call", [DESCRIBE, LIST, DELETE], ids=lambda each: each.opcode.name)
def test_only_calls_that_depend_on_the_dialect_wait_for_the_greeting(duet, call) -> None:
    got: list = []
    _, held = duet.client.start(call, got.append)
    assert held == []
    (ping,) = duet.served(duet.client.start(PING, got.append)[1])
    duet.told(duet.server.send_response(ping))
    assert len(got) == 1
    (asked,) = duet.greet(HeartbeatResponse())
    duet.told(duet.server.send_response(asked))
    assert len(got) == 2


PROBED = [LIST, Call("h:1", Opcode.HEARTBEAT, HeartbeatRequest("me"), 5)]
"""Calls to a placement driver. The probe itself is a LIST_RANGES."""


@pytest.mark.parametrize("call", PROBED, ids=lambda each: each.opcode.name)
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
def test_a_placement_driver_is_probed_once_before_it_is_asked(duet, call, is_early) -> None:
    got: list = []
    if is_early:
        duet.client.start(call, got.append)
        (probe,) = duet.greet(FOREIGN)
    else:
        duet.greet(FOREIGN)
        (probe,) = duet.served(duet.client.start(call, got.append)[1])
    assert probe.opcode == Opcode.LIST_RANGES
    assert decode_header(ListRangesRequest, probe.header).range_owners == ()
    assert duet.client.start(call, got.append)[1] == []
    asked = duet.told(duet.server.send_response(probe, encode_header(LISTED)))
    asked += duet.served(duet.client.start(call, got.append)[1])
    assert [each.header for each in asked] == [encode_header(call.header)] * 3
    for each in asked:
        duet.told(duet.server.send_response(each))
    assert [type(each) for each in got] == [Frame] * 3


@pytest.mark.parametrize("call", PROBED, ids=lambda each: each.opcode.name)
def test_a_server_of_the_later_protocol_gets_nothing_but_the_probe(duet, call) -> None:
    got: list = []
    duet.client.start(call, got.append)
    (probe,) = duet.greet(FOREIGN)
    later = encode_header(SystemErrorResponse(Status(1200)))  # its status is in field 0, too
    assert duet.told(duet.server.send_response(probe, later)) == []
    assert [type(each) for each in got] == [UnsupportedError]
    assert "May 2023 or later" in str(got[0])
    for refused in (call, DESCRIBE, NUMBERED):
        with pytest.raises(UnsupportedError, match="May 2023 or later"):
            duet.client.start(refused, got.append)
    assert len(duet.served(duet.client.start(PING, got.append)[1])) == 1


@pytest.mark.parametrize(
    "call",
    [DESCRIBE, PING, Call("h:1", Opcode.APPEND, None, 5), Call("h:1", Opcode.FETCH, None, 5)],
    ids=lambda each: each.opcode.name,
)
def test_a_range_server_is_not_probed(duet, call) -> None:
    """ElasticStream's would not answer."""
    duet.greet(FOREIGN)
    assert len(duet.served(duet.client.start(call, lambda _: None)[1])) == 1


def test_a_server_that_refuses_the_probe_answers_for_itself(duet) -> None:
    got: list = []
    duet.client.start(LIST, got.append)
    (probe,) = duet.greet(FOREIGN)
    error = UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "not here")
    assert len(duet.told(duet.server.send_system_error(probe, error))) == 1
    assert got == []


def test_calls_that_wait_for_the_probe_end_with_the_connection(duet) -> None:
    got: list = []
    duet.client.start(LIST, got.append)
    duet.greet(FOREIGN)
    assert not duet.client.is_finished
    duet.client.end(lost("h:1", "gone"))
    assert [type(each) for each in got] == [ConnectError]
    assert got[0].outcome is Outcome.NOT_APPLIED


def test_calls_that_wait_for_the_probe_are_refused_after_goaway(duet) -> None:
    got: list = []
    duet.client.start(LIST, got.append)
    (probe,) = duet.greet(FOREIGN)
    duet.told(duet.server.send_goaway())
    assert duet.told(duet.server.send_response(probe, encode_header(LISTED))) == []
    assert [type(each) for each in got] == [ShuttingDownError]


@pytest.mark.parametrize(
    ("answer", "is_sent"),
    [
        (FOREIGN, False),
        (HeartbeatResponse(status=Status(1200), cluster_id=""), True),
        (HeartbeatResponse(status=Status(1200), cluster_id="c"), True),
        (HeartbeatResponse(), True),
    ],
    ids=["ElasticStream's", "ours", "ours of a cluster", "the specification's"],
)
def test_extensions_of_our_range_servers_are_not_sent_to_others(duet, answer, is_sent) -> None:
    got: list = []
    duet.client.start(DELETE, got.append)
    assert len(duet.greet(answer)) == is_sent
    assert [type(each) for each in got] == [UnsupportedError] * (not is_sent)


@pytest.mark.parametrize(
    ("answer", "opcode"), [(FOREIGN, 0x2004), (HeartbeatResponse(), 0x2005)], ids=["1200", "none"]
)
def test_the_answer_to_the_greeting_chooses_the_opcode(duet, answer, opcode) -> None:
    duet.client.start(DESCRIBE, lambda _: None)
    (held,) = duet.greet(answer)
    (later,) = duet.served(duet.client.start(DESCRIBE, lambda _: None)[1])
    assert [held.opcode, later.opcode] == [opcode, opcode]
    assert held.header == later.header == encode_header(HEADER)


def test_a_peer_without_the_greeting_is_served_by_the_specification(duet) -> None:
    duet.client.start(DESCRIBE, lambda _: None)
    error = InvalidRequestError(StatusCode.BAD_REQUEST, "what?")
    (held,) = duet.told(duet.server.send_system_error(duet.greeting, error))
    assert held.opcode == 0x2005


def test_features_that_a_foreign_server_did_not_answer_are_declined(duet) -> None:
    duet.greet(FOREIGN)
    assert duet.client.agreement == NOTHING
    other = Duet()
    other.greet(HeartbeatResponse(features=(Feature("deadline"),)))
    assert other.client.agreement.has_deadline


def test_a_call_that_is_given_up_while_it_is_held_is_never_sent(duet) -> None:
    got: list = []
    abandoned, _ = duet.client.start(DESCRIBE, got.append)
    late, _ = duet.client.start(DESCRIBE, got.append)
    duet.client.abandon(abandoned)
    assert isinstance(duet.client.expire(late, Opcode.DESCRIBE_RANGE), DeadlineExceededError)
    assert duet.client.is_finished
    assert duet.greet(FOREIGN) == got == []


def test_a_call_that_is_given_up_before_there_is_a_connection_is_never_sent() -> None:
    client, server, got = Conversation("h:1", "me", Wishes()), Connection(), []
    late, nothing = client.start(PING, got.append)
    error = client.expire(late, Opcode.PING)
    assert nothing == []
    assert isinstance(error, ConnectError)
    assert error.outcome is Outcome.NOT_APPLIED
    client.start(DESCRIBE, got.append)
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
    duet.client.start(DESCRIBE, got.append)
    duet.client.retire()
    assert not duet.client.is_finished
    (held,) = duet.greet(FOREIGN)
    assert not duet.client.is_finished
    duet.told(duet.server.send_response(held))
    assert duet.client.is_finished
    assert len(got) == 1


def test_held_calls_end_with_the_connection(duet) -> None:
    got: list = []
    duet.client.start(DESCRIBE, got.append)
    duet.client.end(lost("h:1", "gone"))
    assert [type(each) for each in got] == [ConnectError]
    assert got[0].outcome is Outcome.NOT_APPLIED
    assert duet.client.is_finished


def test_held_calls_are_refused_after_goaway(duet) -> None:
    got: list = []
    duet.client.start(DESCRIBE, got.append)
    duet.told(duet.server.send_goaway())
    assert duet.greet(FOREIGN) == []
    assert [type(each) for each in got] == [ShuttingDownError]
    assert duet.client.is_finished
    with pytest.raises(ShuttingDownError):
        duet.client.start(DESCRIBE, got.append)


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


def test_a_server_that_does_not_lead_has_answered_the_greeting(duet) -> None:
    error = NotLeaderError(StatusCode.PD_NOT_LEADER, "ask another")
    duet.greet(HeartbeatResponse(status=status_for(error)))
    assert duet.client.is_usable


def test_a_server_that_declines_has_declined(duet) -> None:
    got: list = []
    duet.client.start(NUMBERED, got.append)
    assert duet.greet(HeartbeatResponse()) == []
    assert [type(each) for each in got] == [UnsupportedError]
