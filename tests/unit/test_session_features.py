"""Features on a connection: two real ends over a list of bytes, as in test_session_connection."""

import random

import pytest

from sbp_core.errors import FrameError
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import Agreement
from sbp_core.session.states import ConnectionBroken, RequestReceived, ResponseReceived
from sbp_core.wire.frame import FrameDecoder, decompress, encode_frame, maybe_compress
from sbp_core.wire.opcodes import Flag, Opcode

COMPRESSIBLE = b"".join(b"%d:%d," % (number, number * number) for number in range(3000))
CHECKED = Agreement(has_header_checksum=True)
COMPRESSED = Agreement(has_compression=True, has_header_checksum=True)


def pair(agreement):
    client, server = Connection(), Connection()
    server.adopt(agreement, is_client=False)
    client.adopt(agreement, is_client=True)
    return client, server


def deliver(buffers, receiver):
    receiver.decoder.receive_data(b"".join(buffers))
    return list(receiver.events())


def echo(client, server, payload):
    """Send a payload there and back; return how many bytes each way took."""
    _, there = client.start_call(Opcode.FETCH, b"header", payload)
    (request,) = deliver(there, server)
    assert isinstance(request, RequestReceived)
    assert bytes(request.frame.payload) == b"".join(payload)
    back = server.send_response(request.frame, request.frame.header, [request.frame.payload])
    (response,) = deliver(back, client)
    assert isinstance(response, ResponseReceived)
    assert bytes(response.frame.payload) == b"".join(payload)
    return sum(map(len, there)), sum(map(len, back))


def test_payloads_are_compressed_either_way_once_that_is_agreed_on():
    there, back = echo(*pair(COMPRESSED), [COMPRESSIBLE, COMPRESSIBLE])
    assert max(there, back) < len(COMPRESSIBLE)


def test_nothing_is_compressed_before_it_is_agreed_on():
    there, back = echo(*pair(CHECKED), [COMPRESSIBLE])
    assert min(there, back) > len(COMPRESSIBLE)


@pytest.mark.parametrize(
    "payload",
    [b"short " * 10, random.Random(1).randbytes(50_000), b"\0" * 1_000_000],
    ids=["short", "random", "higher ratio than a receiver accepts"],
)
def test_a_payload_that_gains_little_or_too_much_is_sent_as_it_is(payload):
    assert maybe_compress([payload]) is None
    there, _ = echo(*pair(COMPRESSED), [payload])
    assert there > len(payload)


def test_a_decompressed_payload_may_be_written_to():
    compressed = maybe_compress([COMPRESSIBLE])
    assert compressed is not None
    payload = decompress(compressed)
    payload[0] = 255
    assert payload[0] == 255


def test_the_flags_mean_nothing_where_nothing_was_agreed_on():
    flags = Flag.COMPRESSED | Flag.HEADER_CHECKSUM
    (event,) = deliver(encode_frame(Opcode.APPEND, flags, 1, b"", [b"plain"]), Connection())
    assert isinstance(event, RequestReceived)
    assert bytes(event.frame.payload) == b"plain"


def test_without_it_a_flipped_bit_of_a_header_gets_through():
    """The checksum of the specification covers only the payload, hence the feature."""
    frame = bytearray(b"".join(encode_frame(Opcode.PING, Flag.REQUEST, 9, b"header", [b"payload"])))
    frame[18] ^= 4
    decoder = FrameDecoder()
    decoder.receive_data(frame)
    assert [each.header for each in decoder.frames()] == [b"heeder"]


def test_a_server_takes_what_was_sent_before_its_answer_arrived_and_nothing_plain_after():
    server = Connection()
    server.adopt(CHECKED, is_client=False)
    plain = [encode_frame(Opcode.FETCH, Flag.REQUEST, call_id) for call_id in (1, 2, 4)]
    checked = encode_frame(Opcode.FETCH, Flag.REQUEST, 3, covers_header=True)
    early = deliver([*plain[0], *plain[1], *checked], server)
    assert [event.frame.call_id for event in early] == [1, 2, 3]
    (late,) = deliver(plain[2], server)
    assert isinstance(late, ConnectionBroken)
    assert "without a header checksum" in str(late.error)


def test_a_client_takes_nothing_plain_once_it_was_agreed_on():
    client = Connection()
    call_id, _ = client.start_call(Opcode.FETCH)
    client.adopt(CHECKED, is_client=True)
    events = deliver(encode_frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, call_id), client)
    assert isinstance(events[-1], ConnectionBroken)


def test_a_farewell_and_a_goaway_are_checked_too():
    client, server = pair(CHECKED)
    deliver(server.send_goaway(), client)
    assert client.state.name == "DRAINING"
    (broken,) = deliver(server.send_farewell(FrameError("enough")), client)
    assert "enough" in str(broken.error)
