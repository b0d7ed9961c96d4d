"""Peers that send a byte of their frames every second, until the server has enough of them."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sbp_core.wire.frame import encode_frame
from sbp_core.wire.opcodes import Flag, Opcode


@contextmanager
def slow_peers(port: int, count: int) -> Iterator[list[float]]:
    """Connect slow peers; at the end of the body wait until the server closed all of them.

    Half of them did a PING before. The list is filled with the seconds after which each was gone.
    """
    ping = b"".join(encode_frame(Opcode.PING, Flag.REQUEST, 1, b"", [bytes(200)]))
    gone: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(count):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 2:
                peer.sendall(ping)
                peer.recv(1024)
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ)
        thread = threading.Thread(target=_trickle, args=(selector, ping, gone))
        thread.start()
        yield gone
        thread.join()


def _trickle(selector: selectors.BaseSelector, data: bytes, gone: list[float]) -> None:
    began = time.monotonic()
    for byte in data:
        for key in list(selector.get_map().values()):
            _send(key.fileobj, byte)
        next_at = time.monotonic() + 1
        while (left := next_at - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if _is_closed(key.fileobj):
                    selector.unregister(key.fileobj)
                    gone.append(time.monotonic() - began)
            if not selector.get_map():
                return


def _send(peer: object, byte: int) -> None:
    assert isinstance(peer, socket.socket)
    try:
        peer.send(bytes([byte]))
    except OSError:
        return  # `_is_closed` finds it


def _is_closed(peer: object) -> bool:
    assert isinstance(peer, socket.socket)
    try:
        return not peer.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True
