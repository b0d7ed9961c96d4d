"""Requests and responses of Kafka's protocol, as bytes and as values.

A handler returns the fields of its response as plain values: `encode_response` makes the message of
the version that was asked for. It leaves out fields that this version lacks, and gives fields that
the handler leaves out their default, so a handler serves all versions.
"""

from __future__ import annotations

import io
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from sbp_core.errors import FrameError, UnsupportedError
from sbp_core.kafka.lengths import check_lengths

Fields = Mapping[str, Any]
"""The fields of a response: numbers of ms for times, mappings and lists for what is inside."""

LENGTH_BYTES: Final = 4
_API_BYTES: Final = 4
"""The head of a request begins with the key of the API and its version, two bytes each."""
_NO_VALUE: Final = {str: "", bytes: b"", bool: False, UUID: UUID(int=0)}


@dataclass(frozen=True, slots=True)
class Request:
    """A request: the message as kio reads it, and what its head says."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any


def by_topic(topics: Iterable[Any], answers: Iterable[Fields]) -> list[Fields]:
    """Return the answers about partitions, in the order of a request, as its response has them."""
    left = iter(answers)
    return [
        {"name": topic.name, "partitions": [next(left) for _ in topic.partitions]}
        for topic in topics
    ]


def peek_api(frame: bytes) -> tuple[int, int]:
    """Return the key and the version of the API of a request. Raises FrameError."""
    if len(frame) < _API_BYTES:
        raise FrameError(
            f"a request of Kafka's protocol has {len(frame)} bytes, less than its head"
        )
    key = int.from_bytes(frame[:2], "big", signed=True)
    return key, int.from_bytes(frame[2:_API_BYTES], "big", signed=True)


def decode_request(frame: bytes) -> Request:
    """Return a request from its bytes, without the length in front.

    Raises UnsupportedError for an API or a version that nobody knows, FrameError for other bytes.
    """
    key, version = peek_api(frame)
    try:
        schema: Any = load_request_schema(key, version)
    except KioIndexError:
        raise UnsupportedError.of(
            f"API {key} of Kafka's protocol has no version {version}"
        ) from None
    try:
        header, size = _reader(schema.__header_schema__)(frame, 0)
        check_lengths(schema, frame, size)
        body, _ = _reader(schema)(frame, size)
    except FrameError:
        raise
    except Exception as error:  # kio raises what its readers meet, ValueError to UnicodeDecodeError
        raise FrameError(f"{schema.__name__} v{version} cannot be read: {error}") from error
    return Request(key, version, header.correlation_id, header.client_id or "", body)


def encode_response(api_key: int, version: int, correlation_id: int, answer: Fields) -> bytes:
    """Return the bytes of a response, with the length in front."""
    schema: Any = load_response_schema(api_key, version)
    target = io.BytesIO()
    target.write(bytes(LENGTH_BYTES))
    header = _made(schema.__header_schema__, {"correlation_id": correlation_id})
    _writer(schema.__header_schema__)(target, header)
    _writer(schema)(target, _made(schema, answer))
    encoded = target.getbuffer()
    encoded[:LENGTH_BYTES] = (len(encoded) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return bytes(encoded)


@cache
def _reader(schema: Any) -> Callable[[Any, int], tuple[Any, int]]:
    return entity_reader(schema)


@cache
def _writer(schema: Any) -> Callable[[Any, Any], None]:
    return entity_writer(schema)


def _made(schema: type, values: Fields) -> Any:
    """Return a message, or a part of one, of plain values."""
    known = {
        name: convert(values[name]) if name in values else default
        for name, convert, default in _plan(schema)
        if name in values or default is not MISSING
    }
    return schema(**known)


@cache
def _plan(schema: type) -> list[tuple[str, Callable[[Any], Any], Any]]:
    """Return for each field its name, how its value is made, and its default."""
    return [(each.name, *_field_plan(each)) for each in fields(schema)]


def _field_plan(field: Any) -> tuple[Callable[[Any], Any], Any]:
    kind, is_optional = field.type, False
    if isinstance(kind, types.UnionType):
        is_optional = True
        (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
    is_list = typing.get_origin(kind) is tuple
    if is_list:
        kind = typing.get_args(kind)[0]
    convert = _converter(kind, field.metadata.get("kafka_type", ""))
    default = field.default
    if default is MISSING:
        default = () if is_list else None if is_optional else _zero(kind, convert)
    if is_list:
        return lambda found: None if found is None else tuple(map(convert, found)), default
    return (lambda found: None if found is None else convert(found)), default


def _zero(kind: type, convert: Callable[[Any], Any]) -> Any:
    if is_dataclass(kind):
        return MISSING
    for known, zero in _NO_VALUE.items():
        if issubclass(kind, known):
            return zero
    return convert(0)


def _converter(kind: type, kafka_type: str) -> Callable[[Any], Any]:
    if is_dataclass(kind):
        return lambda values: _made(kind, values)
    match kafka_type:
        case "timedelta_i32" | "timedelta_i64":
            return lambda ms: timedelta(milliseconds=ms)
        case "datetime_i64":
            return lambda ms: datetime.fromtimestamp(ms / 1000, UTC)
        case "error_code":
            return ErrorCode
    return lambda found: found
