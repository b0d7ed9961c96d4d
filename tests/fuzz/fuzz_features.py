"""Connections that agree on features: header checksums, compressed payloads, hostile offers.

The first byte of an input decides whether checksums are corrected first: else hardly any mutated
frame would get beyond its checksum.
"""

from __future__ import annotations

import struct
from zlib import crc32

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import RequestedFeatures, accept, offer
from sbp_core.session.states import ConnectionBroken, RequestReceived
from sbp_core.wire.headers import Feature, HeartbeatRequest, decode_header, encode_header
from sbp_core.wire.opcodes import Flag, Opcode

_FRAME = struct.Struct(">IBHBII")
_CHECKSUM = struct.Struct(">I")
_EVERYTHING = RequestedFeatures(compression=True, isolation="class", handler_duration=True)
_ODD = (Feature("compression", b"lz4,zstd"), Feature(None, b"x"), Feature("isolation", b"\xff"))
_TEXT = b"".join(b"%d," % number for number in range(2000))


def features_corpus() -> list[bytes]:
    """A greeting, then frames with all that was agreed on."""
    inputs = []
    for features in (offer(_EVERYTHING), (*_ODD, *offer(_EVERYTHING)), ()):
        client = Connection()
        _, greeting = client.start_call(
            Opcode.HEARTBEAT, encode_header(HeartbeatRequest(client_id="c", features=features))
        )
        client.adopt(accept(features, 1)[0], is_client=True)
        encoded = b"".join(greeting)
        for payload in ([], [b"short"], [_TEXT], [_TEXT, b"x" * 10_000]):
            encoded += b"".join(client.start_call(Opcode.PING, b"header", payload)[1])
        inputs += [bytes([mends]) + encoded for mends in (0, 1)]
    return inputs


def check_features(data: bytes) -> None:
    """Serve any bytes: the connection works or is closed."""
    encoded = _mended(bytearray(data[1:])) if data[:1] == b"\1" else data[1:]
    server = Connection()
    server.decoder.receive_data(encoded)
    is_broken = False
    for event in server.events():
        assert not is_broken, "an event after the end"
        is_broken = isinstance(event, ConnectionBroken)
        if isinstance(event, RequestReceived):
            frame = event.frame
            assert len(frame.payload) <= limits.FRAME_BYTES_MAX
            server.send_response(frame, b"", [frame.payload])
            if frame.opcode == Opcode.HEARTBEAT:
                _greet(server, frame.header)


def _greet(server: Connection, header: bytes) -> None:
    try:
        features = decode_header(HeartbeatRequest, header).features
    except HeaderError:
        return
    agreement, answered = accept(features, 1)
    assert {each.name for each in answered} <= {each.name for each in features}
    server.adopt(agreement, is_client=False)


def _mended(encoded: bytearray) -> bytes:
    position = 0
    while position + _FRAME.size + _CHECKSUM.size <= len(encoded):
        length, _, _, flags, _, header_word = _FRAME.unpack_from(encoded, position)
        end = position + length
        if length < limits.FRAME_BYTES_MIN or end + _CHECKSUM.size > len(encoded):
            break
        start = position if flags & Flag.HEADER_CHECKSUM else position + _FRAME.size
        start += 0 if flags & Flag.HEADER_CHECKSUM else header_word & 0xFFFFFF
        _CHECKSUM.pack_into(encoded, end, crc32(encoded[start:end]))
        position = end + _CHECKSUM.size
    return bytes(encoded)
