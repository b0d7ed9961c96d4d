"""Two real connections talk to each other over a wire that is just a list of bytes."""

import pytest

from sbp_core import limits
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    InvalidRequestError,
    Outcome,
    ProtocolError,
    ShuttingDownError,
    StatusCode,
    ThrottledError,
)
from sbp_core.session.connection import Connection
from sbp_core.session.states import (
    CallFailed,
    ConnectionBroken,
    GoawayReceived,
    RequestReceived,
    RequestRefused,
    ResponseReceived,
)
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import decode_system_error
from sbp_core.wire.opcodes import Flag, Opcode


def deliver(buffers, receiver):
    receiver.decoder.receive_data(b"".join(buffers))
    return list(receiver.events())


@pytest.fixture
def client():
    return Connection()


@pytest.fixture
def server():
    return Connection()


def ask(client, server, **options):
    call_id, buffers = client.start_call(Opcode.FETCH, b"", **options)
    (event,) = deliver(buffers, server)
    assert isinstance(event, RequestReceived)
    assert event.frame.call_id == call_id
    return call_id, event.frame


def test_after_the_end_nothing_more_is_sent(client, server):
    _, request = ask(client, server)
    assert server.send_response(request)
    assert server.send_response(request) == []


def test_an_abandoned_call_drops_the_late_answer(client, server):
    early, early_request = ask(client, server)
    ask(client, server)
    client.abandon_call(early)
    assert deliver(server.send_response(early_request, is_end=False), client) == []
    assert deliver(server.send_response(early_request), client) == []
    assert len(client._calls) == 1


def test_goaway_lets_open_calls_finish_and_refuses_new_ones(client, server):
    call_id, request = ask(client, server)
    (event,) = deliver(server.send_goaway(), client)
    assert isinstance(event, GoawayReceived)
    assert server.send_goaway() == []
    answered = encode_frame(Opcode.GOAWAY, Flag.RESPONSE | Flag.END, 0)
    assert deliver(answered, server) == [], "the specification does not say that there is no answer"
    with pytest.raises(ShuttingDownError) as refused:
        client.start_call(Opcode.FETCH)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    (event,) = deliver(server.send_response(request), client)
    assert event.call_id == call_id


def test_a_request_that_crosses_a_goaway_is_refused_clearly(client, server):
    server.send_goaway()
    call_id, buffers = client.start_call(Opcode.APPEND)
    (event,) = deliver(buffers, server)
    assert isinstance(event, RequestRefused)
    (answer,) = deliver(server.send_system_error(event.frame, event.error), client)
    assert isinstance(answer, ResponseReceived)
    assert answer.frame.is_system_error
    status = decode_system_error(answer.frame.header).status
    assert (answer.call_id, status.code) == (call_id, StatusCode.RS_SHUTTING_DOWN)


def test_closing_fails_open_calls_with_an_unknown_outcome(client, server):
    call_id, _ = ask(client, server)
    (failed,) = client.close()
    assert isinstance(failed, CallFailed)
    assert failed.call_id == call_id
    assert isinstance(failed.error, ConnectionLostError)
    assert failed.error.outcome is Outcome.UNKNOWN
    with pytest.raises(ConnectError):
        client.start_call(Opcode.FETCH)
    assert list(client.events()) == []


def test_an_answer_to_a_call_that_was_never_made_breaks_the_connection(client):
    (event,) = deliver(encode_frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 5), client)
    assert isinstance(event, ConnectionBroken)
    assert "never issued" in str(event.error)


def test_an_answer_with_another_opcode_breaks_the_connection(client):
    call_id, _ = client.start_call(Opcode.FETCH)
    failed, broken = deliver(encode_frame(Opcode.APPEND, Flag.RESPONSE, call_id), client)
    assert failed.call_id == call_id
    assert isinstance(broken, ConnectionBroken)


@pytest.mark.parametrize("call_id", [2**31, 2**32 - 1])
def test_a_negative_call_id_breaks_the_connection(server, call_id):
    (event,) = deliver(encode_frame(Opcode.FETCH, 0, call_id), server)
    assert isinstance(event, ConnectionBroken)


def test_a_call_id_in_use_breaks_the_connection(server):
    frame = encode_frame(Opcode.FETCH, 0, 4)
    assert isinstance(deliver(frame, server)[0], RequestReceived)
    assert isinstance(deliver(frame, server)[0], ConnectionBroken)


def test_open_calls_and_requests_are_bounded(client, server):
    sent = [client.start_call(Opcode.FETCH)[1] for _ in range(limits.CALLS_IN_FLIGHT_MAX)]
    with pytest.raises(ThrottledError):
        client.start_call(Opcode.FETCH)
    for buffers in sent:
        deliver(buffers, server)
    extra = encode_frame(Opcode.FETCH, 0, limits.CALLS_IN_FLIGHT_MAX + 1)
    (event,) = deliver(extra, server)
    assert isinstance(event, RequestRefused)
    assert isinstance(event.error, ThrottledError)


THROTTLED = ThrottledError(StatusCode.TOO_MANY_REQUESTS, "too many connections")


def test_a_peer_that_is_full_from_the_beginning_had_looked_at_nothing(client, server):
    call_id, _ = client.start_call(Opcode.APPEND)
    failed, broken = deliver(server.send_farewell(THROTTLED), client)
    assert (failed.call_id, failed.error.outcome) == (call_id, Outcome.NOT_APPLIED)
    assert isinstance(broken, ConnectionBroken)
    assert "too many connections" in str(broken.error)


def test_a_peer_that_is_full_later_on_may_have_done_something(client, server):
    _, request = ask(client, server)
    deliver(server.send_response(request), client)
    client.start_call(Opcode.APPEND)
    failed, _ = deliver(server.send_farewell(THROTTLED), client)
    assert failed.error.outcome is Outcome.UNKNOWN


def test_a_farewell_tells_why(client, server):
    error = InvalidRequestError(StatusCode.INVALID_REQUEST, "you sent nonsense")
    (event,) = deliver(server.send_farewell(error), client)
    assert isinstance(event, ConnectionBroken)
    assert isinstance(event.error, ProtocolError)
    assert "you sent nonsense" in str(event.error)
