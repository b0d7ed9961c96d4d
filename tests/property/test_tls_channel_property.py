"""A TLS channel, without I/O: whatever the pieces are, the same bytes come out."""

import random
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.tls import SEALED_BYTES, Contexts
from sbp_core.tls_errors import PlainTextError, refusal, tls_error
from tests.support.security import Authority


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.issue()
    return Contexts(authority.server(pair)), Contexts(authority.client(pair))


def connected(ends):
    """A server's and a client's channel after their handshake."""
    server, client = ends[0].server_channel(), ends[1].client_channel("localhost")
    while not (client.shake_hands() and server.shake_hands()):
        server.feed(memoryview(client.take()))
        if not server.is_open:
            server.shake_hands()
        client.feed(memoryview(server.take()))
    return server, client


def drained(channel, target_bytes):
    found = b""
    target = memoryview(bytearray(target_bytes))
    while count := channel.read_into(target):
        found += target[:count]
    return found


SIZES = st.sampled_from([0, 1, 100, 16_384, 20_000, SEALED_BYTES, 2 * SEALED_BYTES + 1])
PART = SIZES.map(lambda size: random.Random(size).randbytes(size))


@given(
    messages=st.lists(st.lists(PART, max_size=3), max_size=3),
    cut_bytes=st.integers(2_000, 400_000),
    target_bytes=st.integers(2_000, 400_000),
)
def test_bytes_arrive_in_their_order_whatever_the_pieces_are(
    ends, messages, cut_bytes, target_bytes
):
    server, client = connected(ends)
    sealed = b"".join(piece for each in messages for piece in client.seal(each))
    found = b""
    for start in range(0, len(sealed), cut_bytes):
        server.feed(memoryview(sealed[start : start + cut_bytes]))
        found += drained(server, target_bytes)
    assert found == b"".join(part for each in messages for part in each)
    assert server.has_peer_certificate


def test_the_end_of_a_peer_is_seen_behind_what_it_sent(ends):
    server, client = connected(ends)
    server.feed(memoryview(b"".join(client.seal([b"last"])) + client.end()))
    assert drained(server, 100) == b"last"
    assert server.is_ended
    client.feed(memoryview(b"".join(server.seal([b"answer"])) + server.end()))
    assert drained(client, 100) == b"answer"
    assert client.is_ended


def fails_with(channel, received):
    """Whether received bytes end a connection; otherwise they are a part of a longer record."""
    try:
        channel.feed(memoryview(received))
        assert drained(channel, 1_000) == b""
    except ssl.SSLError:
        return True
    return False


@given(st.data())
def test_a_changed_byte_ends_the_connection(ends, data):
    server, client = connected(ends)
    sealed = bytearray(b"".join(client.seal([b"x" * 100])))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    assert fails_with(server, bytes(sealed)) or fails_with(
        server, next(client.seal([bytes(70_000)]))
    )


def test_what_came_before_garbage_is_delivered_first(ends):
    server, client = connected(ends)
    server.feed(memoryview(next(client.seal([b"good"])) + bytes(50)))
    target = memoryview(bytearray(100))
    assert server.read_into(target) == 4
    for _ in range(2):
        with pytest.raises(ssl.SSLError):
            server.read_into(target)


@given(st.binary(min_size=1, max_size=100))
def test_what_does_not_begin_as_tls_is_plain_text(ends, sent):
    server = ends[0].server_channel()
    try:
        server.feed(memoryview(sent))
        server.shake_hands()
    except PlainTextError:
        assert sent[0] not in {0x15, 0x16}
    except ssl.SSLError:
        assert sent[0] in {0x15, 0x16}
    assert not server.is_open


def test_a_peer_that_sends_nothing_of_use_is_given_up(ends):
    server, client = connected(ends)
    server.feed(memoryview(next(client.seal([b"once"]))))
    drained(server, 10)
    record = b"\x17\x03\x03\x40\x00"  # a record whose rest never comes
    assert any(fails_with(server, record + bytes(1_000)) for _ in range(1_000))


def test_too_much_of_no_use_is_refused_with_the_reason(ends):
    server = ends[0].server_channel()
    with pytest.raises(ssl.SSLError) as raised:
        server.feed(memoryview(b"\x16" + bytes(600_000)))
    told = refusal(raised.value), str(tls_error("host:1", "host", raised.value))
    assert all("600001 bytes with nothing for the application" in each for each in told)
