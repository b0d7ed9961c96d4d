"""The proxy applies its faults to the chosen frames, and to no others."""

import contextlib
import socket
import threading
import time

import pytest

from sbp_core.wire.frame import encode_frame
from sbp_core.wire.opcodes import Opcode
from tests.support.faults.proxy import (
    Corrupt,
    Delay,
    Direction,
    FaultProxy,
    Hold,
    Reset,
    Split,
    Swallow,
    flip,
)

TO_SERVER, TO_CLIENT = Direction
PING = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [b"ping"]))
APPEND = b"".join(encode_frame(Opcode.APPEND, 0, 2, b"", [b"append"]))
FRAMES = PING + APPEND
DEADLINE_SECONDS = 60


class Echo:
    """A server that sends back what it gets, and keeps it by connection."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.received = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self.listener.accept()
                self.received.append(bytearray())
                arguments = (accepted, self.received[-1])
                threading.Thread(target=self.serve, args=arguments, daemon=True).start()

    def serve(self, accepted, received):
        try:
            while data := accepted.recv(65536):
                received += data
                accepted.sendall(data)
            received += b"<end>"
        except ConnectionError:
            received += b"<reset>"
        accepted.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def upstream():
    with contextlib.closing(Echo()) as running:
        yield running


@pytest.fixture
def proxy(upstream):
    with FaultProxy(upstream.endpoint) as running:
        yield running


@pytest.fixture
def connect(proxy):
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_SECONDS))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def read(connected, count):
    data = b""
    while len(data) < count and (more := connected.recv(count - len(data))):
        data += more
    return data


def wait_until(is_so):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_silent(connected):
    connected.settimeout(0.05)
    try:
        return not connected.recv(1)
    except TimeoutError:
        return True
    finally:
        connected.settimeout(DEADLINE_SECONDS)


def test_frames_pass_unchanged_in_any_pieces(proxy, connect, upstream):
    client = connect()
    for start in range(0, len(FRAMES), 3):
        client.sendall(FRAMES[start : start + 3])
    assert read(client, len(FRAMES)) == FRAMES
    assert proxy.injected_count == 0
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert upstream.received == [FRAMES + b"<end>"]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("fault", [Delay(1), Split(1), Split(7)])
def test_faults_that_delay_frames_do_not_change_them(proxy, connect, fault, direction):
    proxy.inject(fault, direction)
    client = connect()
    client.sendall(FRAMES)
    assert read(client, len(FRAMES)) == FRAMES
    assert proxy.injected == {type(fault).__name__: 2}


@pytest.mark.parametrize("direction", Direction)
def test_held_frames_arrive_in_order_when_the_proxy_is_healed(proxy, connect, direction):
    proxy.inject(Hold(), direction, Opcode.APPEND)
    client = connect()
    client.sendall(FRAMES + PING)
    assert read(client, len(PING)) == PING
    assert is_silent(client)
    proxy.heal()
    assert read(client, len(APPEND + PING)) == APPEND + PING
    client.sendall(APPEND)
    assert read(client, len(APPEND)) == APPEND
    assert proxy.injected == {"Hold": 1}


def test_a_half_open_connection_stays_so_and_new_ones_do_not(proxy, connect, upstream):
    proxy.inject(Swallow(), TO_CLIENT, Opcode.APPEND)
    client = connect()
    client.sendall(FRAMES + PING)
    assert read(client, len(PING)) == PING
    assert is_silent(client)
    proxy.heal()
    client.sendall(PING)
    wait_until(lambda: upstream.received[0] == FRAMES + PING + PING)
    assert is_silent(client)
    fresh = connect()
    fresh.sendall(FRAMES)
    assert read(fresh, len(FRAMES)) == FRAMES
    assert proxy.injected == {"Swallow": 1}


def test_the_server_does_not_learn_of_the_end_of_a_half_open_connection(proxy, connect, upstream):
    proxy.inject(Swallow(), TO_SERVER, count=1)
    client = connect()
    client.sendall(PING)
    wait_until(lambda: proxy.injected["Swallow"])
    client.close()
    probe = connect()  # the proxy records the faults of the first one before it
    probe.sendall(PING)
    assert read(probe, len(PING)) == PING
    assert upstream.received == [b"", PING]


@pytest.mark.parametrize("after_bytes", [0, 1, 20, len(APPEND)])
def test_reset_inside_a_frame(proxy, connect, upstream, after_bytes):
    proxy.inject(Reset(after_bytes), TO_CLIENT, Opcode.APPEND)
    client = connect()
    client.sendall(FRAMES)
    assert read(client, len(PING)) == PING
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while byte := client.recv(1):
            got += byte
        pytest.fail("the connection was closed, not reset")
    assert APPEND[:after_bytes].startswith(got)  # a reset may overtake bytes
    assert proxy.injected == {"Reset": 1}


@pytest.mark.parametrize("bit", [50, 130, -1, -33])
def test_one_bit(proxy, connect, bit):
    proxy.inject(Corrupt(bit), TO_SERVER, Opcode.APPEND, count=1)
    client = connect()
    client.sendall(FRAMES + APPEND)
    got = read(client, len(FRAMES + APPEND))
    assert got == PING + flip(APPEND, bit) + APPEND
    assert sum((a ^ b).bit_count() for a, b in zip(got, FRAMES + APPEND, strict=True)) == 1


def test_the_first_rule_that_fits_wins_until_it_is_used_up(proxy, connect):
    proxy.inject(Corrupt(-1), TO_SERVER, Opcode.PING, count=1)
    proxy.inject(Corrupt(-2), TO_SERVER, Opcode.PING)
    client = connect()
    client.sendall(PING + PING)
    assert read(client, 2 * len(PING)) == flip(PING, -1) + flip(PING, -2)


def test_no_server_behind_the_proxy(proxy, connect, upstream):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy.target = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionResetError):
            connect().recv(1)


def test_reset_all(proxy, connect):
    clients = [connect(), connect()]
    for client in clients:
        client.sendall(PING)
        assert read(client, len(PING)) == PING
    proxy.reset_all()
    for client in clients:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
