"""Attacks on servers that speak TLS: handshakes that never end, and hostile certificates."""

import contextlib
import logging
import socket
import ssl
import threading
from contextlib import ExitStack

import psutil
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from sbp_core import limits
from sbp_core.client import Client, Connecting
from sbp_core.errors import ConnectionLostError, TlsError
from sbp_core.tls import Contexts
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import HeartbeatResponse, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.clock import ManualClock, until
from tests.support.listener import ONCE, ServedListener, hello_of, ping_blocking, received, secured
from tests.support.security import Authority

BROKEN_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)
HALF_OPEN = 200
HELD_BYTES_MAX = 360 * limits.KIB
"""Memory of a connection that is idle, or of a handshake that goes on, whatever it was sent."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def records(handshake):
    """The records of a handshake that is not encrypted."""
    parts = [handshake[at : at + 16_384] for at in range(0, len(handshake), 16_384)]
    return b"".join(b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in parts)


def padded_hello(authority, padding_bytes):
    """The first bytes of a client, with an extension that says nothing (RFC 7685)."""
    body = hello_of(authority)[9:]
    at = 34  # behind version and random: a session id, cipher suites and compressions
    for width in (1, 2, 1):
        at += width + int.from_bytes(body[at : at + width], "big")
    extensions = body[at + 2 :] + b"\x00\x15" + padding_bytes.to_bytes(2, "big")
    extensions += bytes(padding_bytes)
    hello = body[:at] + len(extensions).to_bytes(2, "big") + extensions
    return records(b"\x01" + len(hello).to_bytes(3, "big") + hello)


def test_a_half_open_handshake_counts_and_has_the_time_of_the_first_frame(authority):
    clock = ManualClock()
    with (
        ServedListener(authority.server(), clock) as server,
        server.connect() as half_open,
        server.connect() as silent,
    ):
        half_open.sendall(hello_of(authority)[:100])
        until(lambda: server.listener.connection_count == 2)
        server.sweep()
        ping_blocking(server.endpoint, authority.client())
        clock.advance(limits.FIRST_FRAME_MS + 1)
        server.sweep()
        assert [received(each) for each in (half_open, silent)] == [b"", b""]
        until(lambda: server.listener.connection_count == 0)


BROKEN_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)


def test_a_call_on_a_session_that_has_failed_is_an_error_of_the_client(authority):
    connecting = Connecting(tls=authority.client())
    with (
        ServedListener(authority.server()) as server,
        Client(server.endpoint, connecting=connecting, retry=ONCE) as client,
    ):
        client.ping()
        (connection,) = client.on_loop._pool._by_endpoint.values()
        channel = connection._transport.channel
        channel.feed(memoryview(BROKEN_RECORD))
        with contextlib.suppress(ssl.SSLError):
            channel.read_into(memoryview(bytearray(100)))
        with pytest.raises(ConnectionLostError):
            client.ping()
        client.ping()


def test_a_server_that_breaks_off_is_an_error_of_its_clients(authority, caplog):
    caplog.set_level(logging.ERROR)
    channel = Contexts(authority.server()).server_channel()
    greeting = HeartbeatResponse(client_id="c", cluster_id="c", status=SUCCESS)
    answer = encode_frame(
        Opcode.HEARTBEAT, Flag.RESPONSE | Flag.END, 1, encode_header(greeting), [b""]
    )

    def serve(door):
        connection, _ = door.accept()
        with connection:
            while not channel.shake_hands():
                connection.sendall(channel.take())
                channel.feed(memoryview(connection.recv(limits.RECEIVE_WAKE_BYTES)))
            while not channel.read_into(memoryview(bytearray(1_000))):
                channel.feed(memoryview(connection.recv(limits.RECEIVE_WAKE_BYTES)))
            connection.sendall(b"".join(channel.seal(answer)) + BROKEN_RECORD)
            while received(connection):
                pass

    with socket.create_server(("127.0.0.1", 0)) as door:
        server = threading.Thread(target=serve, args=(door,))
        server.start()
        endpoint = f"127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(ConnectionLostError):
            ping_blocking(endpoint, authority.client())
        server.join()
    assert not caplog.records


def test_a_peer_that_does_not_read_is_held_within_bounds_and_cut_off(authority):
    clock, tls = ManualClock(), authority.client()
    ping = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(limits.MIB)]))
    with (
        ServedListener(authority.server(), clock) as server,
        server.connect() as deaf,
    ):
        channel = secured(deaf, tls)
        deaf.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while True:
                deaf.sendall(b"".join(channel.seal([ping])))
        until(lambda: server.listener._unread.total_bytes > limits.MIB)
        held_bytes = server.listener._unread.total_bytes
        assert held_bytes < limits.WRITE_BUFFER_HIGH_BYTES + 3 * limits.MIB
        ping_blocking(server.endpoint, tls)
        assert server.listener.connection_count >= 1
        clock.advance(limits.WRITE_STALL_MS + 1)
        server.sweep()
        until(lambda: server.listener.connection_count == 0)
        until(lambda: server.listener._unread.total_bytes == 0)


def test_half_open_handshakes_hold_little_memory(authority):
    announced = 131_000  # the longest ClientHello that OpenSSL accepts is hardly longer
    sent = records(b"\x01" + announced.to_bytes(3, "big") + bytes(announced - 1_000))
    memory = psutil.Process().memory_info
    with ServedListener(authority.server()) as server, ExitStack() as held:
        ping_blocking(server.endpoint, authority.client())
        before = memory().rss
        for _ in range(HALF_OPEN):
            held.enter_context(server.connect()).sendall(sent)
        until(lambda: server.listener.connection_count >= HALF_OPEN)
        until(lambda: _handshake_bytes(server) == HALF_OPEN * len(sent))
        assert memory().rss - before < HALF_OPEN * HELD_BYTES_MAX
        ping_blocking(server.endpoint, authority.client())


def test_idle_connections_keep_little_memory_of_what_they_have_moved(authority):
    ping = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(limits.MIB)]))
    memory, tls = psutil.Process().memory_info, authority.client()
    target, before = memoryview(bytearray(limits.MIB)), 0
    with ServedListener(authority.server()) as server, ExitStack() as held:
        for number in range(70):
            before = memory().rss if number == 10 else before
            idle = held.enter_context(server.connect())
            channel, count = secured(idle, tls), 0
            idle.sendall(b"".join(channel.seal([ping])))
            while count < len(ping):
                channel.feed(memoryview(idle.recv(limits.RECEIVE_WAKE_BYTES)))
                while read_bytes := channel.read_into(target):
                    count += read_bytes
        assert memory().rss - before < 60 * HELD_BYTES_MAX


def _handshake_bytes(server):
    """Return the bytes of connections whose handshake goes on."""
    links = [each._tls for each in [*server.listener._peers]]
    return sum(link.channel._barren_bytes for link in links if link and not link.channel.is_open)


def test_a_hello_is_as_long_as_its_protocol_allows(authority):
    longer = records(b"\x01\xff\xff\xff" + bytes(100))
    with ServedListener(authority.server()) as server:
        with server.connect() as lengthy:
            lengthy.sendall(padded_hello(authority, 64_000))
            assert received(lengthy)[0] == 0x16  # the server goes on with the handshake
        with server.connect() as too_long:
            too_long.sendall(longer)
            assert received(too_long)[0] == 0x15  # an alert
            assert received(too_long) == b""
        until(lambda: server.listener.connection_count == 0)


def test_a_client_need_not_wait_for_the_end_of_its_handshake(authority):
    """Not even while the server is busy with others: what it sends is not read until its turn."""
    ping = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(2 * limits.MIB)]))
    with ServedListener(authority.server()) as server, contextlib.ExitStack() as stack:
        steps, enter = [], server.listener._turns.enter
        server.listener._turns.enter = steps.append  # a connection takes it when it is accepted
        hasty = stack.enter_context(server.connect())
        channel = Contexts(authority.client()).client_channel("127.0.0.1")
        channel.shake_hands()
        hasty.sendall(channel.take())
        until(lambda: steps)
        server._loop.call_soon_threadsafe(steps.pop())
        while not channel.shake_hands():
            channel.feed(memoryview(hasty.recv(limits.MIB)))
        hasty.settimeout(0.5)
        sealed, sent = channel.take() + b"".join(channel.seal([ping])), 0
        with contextlib.suppress(TimeoutError):
            while sent < len(sealed):
                sent += hasty.send(sealed[sent : sent + 65_536])
        until(lambda: steps)  # the rest of its handshake waits for the next turn
        assert len(steps) == 1
        server.listener._turns.enter = enter
        server._loop.call_soon_threadsafe(steps.pop())
        hasty.settimeout(30)
        hasty.sendall(sealed[sent:])
        assert received(hasty)


def test_a_certificate_for_the_other_role_is_refused(authority, caplog):
    of_server = authority.issue_for(ExtendedKeyUsageOID.SERVER_AUTH)
    of_client = authority.issue_for(ExtendedKeyUsageOID.CLIENT_AUTH)
    files = authority.server(of_server, client_ca_file=authority.ca_file)
    with ServedListener(files) as server:
        ping_blocking(server.endpoint, authority.client(of_client))
        with pytest.raises(TlsError):
            ping_blocking(server.endpoint, authority.client(of_server))
        until(lambda: "is refused: unsuitable certificate purpose" in caplog.text)
    with (
        ServedListener(authority.server(of_client)) as server,
        pytest.raises(TlsError, match="unsuitable certificate purpose"),
    ):
        ping_blocking(server.endpoint, authority.client())


def test_a_certificate_may_be_large_but_not_endless(authority):
    def issue(count):
        label = "x" * 60
        return authority.issue(*(f"{at}.{label}.{label}.{label}.example" for at in range(count)))

    with ServedListener(authority.server(client_ca_file=authority.ca_file)) as server:
        large, endless = issue(340), issue(680)
        assert 64_000 < len(ssl.PEM_cert_to_DER_cert(large.cert_file.read_text())) < 100_000
        ping_blocking(server.endpoint, authority.client(large))
        with pytest.raises(TlsError):
            ping_blocking(server.endpoint, authority.client(endless))
        ping_blocking(server.endpoint, authority.client(large))
