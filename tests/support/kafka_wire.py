"""Requests and responses of Kafka's protocol as bytes, and connections that send any bytes."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

_SIZE = struct.Struct(">i")


def fit(schema: Any, values: dict[str, Any]) -> Any:
    """Return a message or a part of one. Values of fields that the version lacks are left out."""
    made = {}
    for name, field in schema.__dataclass_fields__.items():
        if name not in values:
            continue
        kind, value = field.type, values[name]
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            (part,) = (each for each in _classes(kind) if hasattr(each, "__dataclass_fields__"))
            value = tuple(fit(part, each) for each in value)
        made[name] = value
    return schema(**made)


def _classes(kind: Any) -> list[Any]:
    inner = getattr(kind, "__args__", ())
    return [kind, *(each for one in inner for each in _classes(one))]


def encode_request(key: int, version: int, /, *, client_id: str = "me", **values: Any) -> bytes:
    """Return the bytes of a request as a client writes it, without the length in front."""
    schema: Any = load_request_schema(key, version)
    target = io.BytesIO()
    head = {
        "request_api_key": key,
        "request_api_version": version,
        "correlation_id": 1,
        "client_id": client_id,
    }
    entity_writer(schema.__header_schema__)(target, fit(schema.__header_schema__, head))
    return target.getvalue() + encode_body(fit(schema, values))


def encode_body(message: Any) -> bytes:
    """Return the bytes of a message without its header."""
    target = io.BytesIO()
    entity_writer(type(message))(target, message)
    return target.getvalue()


def decode_response(key: int, version: int, encoded: bytes) -> Any:
    """Return the message of a response, whose bytes begin with the length."""
    assert _SIZE.unpack_from(encoded) == (len(encoded) - _SIZE.size,)
    schema: Any = load_response_schema(key, version)
    head, size = entity_reader(schema.__header_schema__)(encoded, _SIZE.size)
    assert head.correlation_id == 1
    found, read = entity_reader(schema)(encoded, _SIZE.size + size)
    assert _SIZE.size + size + read == len(encoded)
    return found


class RawKafka:
    """A connection that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def at(cls, address: str, **options: Any) -> AsyncIterator[Self]:
        """Connect to a gateway."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26, **options)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, request: bytes) -> None:
        """Send a request, with its length in front."""
        self.writer.write(_SIZE.pack(len(request)) + request)

    async def receive(self) -> bytes:
        """Return the next response, with its length. Raises IncompleteReadError at the end."""
        head = await self.reader.readexactly(_SIZE.size)
        return head + await self.reader.readexactly(*_SIZE.unpack(head))

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Return the response to a request."""
        self.send(encode_request(key, version, **values))
        return decode_response(key, version, await self.receive())

    async def is_closed(self) -> bool:
        """Whether the gateway ends the connection, after what it has sent."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True
