"""Kafka's protocol, as little of it as benchmarks without Java need: create a topic, append to it.

Integers are big-endian, a text has its length before it (2 bytes). A request begins, as a frame of
ours, with its length in 4 bytes, and has its number in bytes 8 to 11; an answer in bytes 4 to 7.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from benchmarks.peer.jars import PeerAbsentError
from sbp_core.wire.checksum import crc32c

_PRODUCE: Final = (0, 3)
_CREATE_TOPICS: Final = (19, 2)
"""Keys of requests, and their versions."""
_ALL: Final = -1
_HEAD_BYTES: Final = 12
_TIMEOUT_MS: Final = 30_000
_RETRY_INTERVAL_S: Final = 0.2
_TOPIC_EXISTS: Final = 36
_READ_BYTES: Final = 65536


def encode_append(topic: str, value: bytes) -> tuple[bytes, bytes]:
    """Return the request that appends a record to partition 0 of a topic, with acks=all.

    The first part ends with the number of the request.
    """
    batch = _record_batch(value)
    body = struct.pack(">hhii", -1, _ALL, _TIMEOUT_MS, 1) + _text(topic)
    request = _request(_PRODUCE, body + struct.pack(">iii", 1, 0, len(batch)) + batch)
    return request[:_HEAD_BYTES], request[_HEAD_BYTES:]


def append_code(answer: bytes) -> int:
    """Return the error code of an append, 0 if it was acknowledged."""
    (name_length,) = struct.unpack_from(">h", answer, 12)
    (code,) = struct.unpack_from(">h", answer, 14 + name_length + 8)
    return int(code)


def create_topic(
    address: str, topic: str, nodes: Sequence[int], settings: Mapping[str, str]
) -> None:
    """Create a topic with one partition on these brokers, the first of which leads it.

    Returns when it accepts appends, as brokers need a while to know each other and the topic.
    Raises PeerAbsentError if that takes too long.
    """
    configs = b"".join(_text(name) + _text(value) for name, value in settings.items())
    body = b"".join(
        (
            struct.pack(">i", 1) + _text(topic) + struct.pack(">ih", -1, -1),
            struct.pack(f">iii{len(nodes)}i", 1, 0, len(nodes), *nodes),
            struct.pack(">i", len(settings)) + configs,
            struct.pack(">i?", _TIMEOUT_MS, False),
        )
    )
    at = 18 + len(topic.encode())
    created = _until(
        address,
        _request(_CREATE_TOPICS, body),
        lambda answer: int.from_bytes(answer[at : at + 2], "big"),
        {0, _TOPIC_EXISTS},
    )
    appended = created and _until(address, b"".join(encode_append(topic, b"-")), append_code, {0})
    if not appended:
        raise PeerAbsentError(f"the topic {topic} is not usable after {_TIMEOUT_MS} ms")


def _until(
    address: str, request: bytes, code: Callable[[bytes], int], good: Container[int]
) -> bool:
    """Repeat a request until its code is good; return whether that was in time."""
    host, _, port = address.rpartition(":")
    give_up_at = time.monotonic() + _TIMEOUT_MS / 1000
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_MS / 1000) as connection:
        while time.monotonic() < give_up_at:
            connection.sendall(request)
            if code(receive_answer(connection)) in good:
                return True
            time.sleep(_RETRY_INTERVAL_S)
    return False


def receive_answer(connection: socket.socket) -> bytes:
    """Return the next answer. Raises ConnectionResetError at the end of the connection."""
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        received = connection.recv(_READ_BYTES)
        if not received:
            raise ConnectionResetError
        answer += received
    return answer


def _request(api: tuple[int, int], body: bytes) -> bytes:
    head = struct.pack(">hhi", *api, 0) + _text("benchmarks")
    return struct.pack(">i", len(head) + len(body)) + head + body


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _record_batch(value: bytes) -> bytes:
    """Return a record batch of one record without key."""
    record = b"\0\0\0" + _varint(-1) + _varint(len(value)) + value + b"\0"
    now_ms = time.time_ns() // 1_000_000
    checked = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1)
    checked += _varint(len(record)) + record
    checksum = crc32c([checked])
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, checksum) + checked


def _varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else ((-number) << 1) - 1
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*encoded, zigzag])
