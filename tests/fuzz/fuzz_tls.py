"""TLS connections of which one flight was changed on the way: no end takes it for the peer's.

The first byte of an input chooses the flight; the rest is that flight as it was recorded, mutated.
Each connection has keys of its own, so the difference is applied to a flight of a new one.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from sbp_core.tls import Channel, Contexts
from sbp_core.tls_errors import PlainTextError
from tests.support.security import Authority

_FLIGHTS = 3
"""ClientHello; all of the server; the certificate of the client, Finished, and what it then sends.

After a HelloRetryRequest there are two more.
"""
_SENT = b"sent by the client" * 10
_HANDSHAKE, _COMPATIBILITY = 22, 20
_HEADER_BYTES = 5

Change = Callable[[int, bytes], bytes]


@cache
def _ends() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    with tempfile.TemporaryDirectory(prefix="sbp-fuzz-") as folder:
        authority = Authority(Path(folder))
        files = authority.server(client_ca_file=authority.ca_file)
        client = Contexts(authority.client(authority.issue()))
        return Contexts(files).current(), client.current()


@cache
def _recorded() -> list[bytes]:
    flights: list[bytes] = []

    def record(_: int, flight: bytes) -> bytes:
        flights.append(flight)
        return flight

    server, client, received = _connect(record)
    assert server.has_peer_certificate
    assert client.has_peer_certificate
    assert received == _SENT
    assert len(flights) == _FLIGHTS
    return flights


def tls_corpus() -> list[bytes]:
    """The flights of one connection."""
    return [bytes([number]) + flight for number, flight in enumerate(_recorded())]


def check_tls(data: bytes) -> None:
    """Change a flight of a new connection as `data` differs from the recorded one."""
    if not data:
        return
    chosen, mutated = data[0] % _FLIGHTS, data[1:]
    is_intact = True

    def change(number: int, flight: bytes) -> bytes:
        nonlocal is_intact
        if number != chosen:
            return flight
        changed = _changed(flight, _recorded()[chosen], mutated)
        handshake, had = _messages(flight), _messages(changed)
        if number == _FLIGHTS - 1:  # behind Finished are records of their own
            handshake = handshake[:-1]
        is_intact = had[: len(handshake)] == handshake
        return changed

    server, client, received = _connect(change)
    assert is_intact or not server.is_open, "the server takes a changed flight for the client's"
    assert is_intact or chosen == _FLIGHTS - 1 or not client.is_open, "so does the client"
    assert server.has_peer_certificate == server.is_open
    assert received in {b"", _SENT}, "the server received what was not sent"


def _connect(change: Change) -> tuple[Channel, Channel, bytes]:
    """Connect while `change` gets each flight by its number; return what the server received."""
    server_context, client_context = _ends()
    server = Channel(server_context.wrap_bio, None)
    client = Channel(client_context.wrap_bio, "localhost")
    received = b""
    client.shake_hands()
    for number in range(_FLIGHTS + 2):
        sender, receiver = (server, client) if number % 2 else (client, server)
        flight = sender.take()
        try:
            if sender is client and client.is_open:
                flight += b"".join(client.seal([_SENT]))
            if not flight:
                break
            receiver.feed(memoryview(change(number, flight)))
            if receiver.is_open or receiver.shake_hands():
                received += _read(receiver)
        except (ssl.SSLError, PlainTextError):
            continue  # perhaps there is an alert for the other end
    return server, client, received


def _read(channel: Channel) -> bytes:
    target = memoryview(bytearray(4 * len(_SENT)))
    return bytes(target[: channel.read_into(target)])


def _changed(flight: bytes, recorded: bytes, mutated: bytes) -> bytes:
    """Return a flight with the difference of two others; signatures have different lengths."""
    size = min(map(len, (flight, recorded, mutated)))
    numbers = (int.from_bytes(each[:size], "big") for each in (flight, recorded, mutated))
    changed = (next(numbers) ^ next(numbers) ^ next(numbers)).to_bytes(size, "big")
    if len(mutated) < len(recorded):
        return changed
    return changed + flight[size:] + mutated[len(recorded) :]


def _messages(flight: bytes) -> list[bytes]:
    """Return what an end looks at: a byte of a handshake, or an encrypted record, per item.

    How a handshake is cut into records, and which version these name, is free (RFC 8446, 5.1); what
    older relays see, a record of one byte, is dropped.
    """
    return [each for kind, record in _records(flight) for each in _looked_at(kind, record)]


def _looked_at(kind: int, record: bytes) -> list[bytes]:
    if kind == _COMPATIBILITY:
        return []
    if kind == _HANDSHAKE:
        return [bytes([each]) for each in record[_HEADER_BYTES:]]
    return [record]


def _records(flight: bytes) -> Iterator[tuple[int, bytes]]:
    while flight:
        end = _HEADER_BYTES + int.from_bytes(flight[3:_HEADER_BYTES], "big")
        yield flight[0], flight[:end]
        flight = flight[end:]
