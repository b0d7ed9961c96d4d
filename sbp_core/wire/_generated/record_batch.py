"""Generated from schemas/record_batch.fbs by schemas/generate.py. Do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sbp_core.wire.flat import Field, Scalar, Table, Text, Vector


class KeyValue(Struct, frozen=True, gc=False):
    key: str | None = None
    value: str | None = None


class RecordBatchMeta(Struct, frozen=True, gc=False):
    """`last_offset_delta` is the number of records, in a record sequence that of the last record from 0 on. `base_timestamp` is milliseconds since the epoch, UTC."""

    stream_id: int = 0
    flags: int = 0
    base_offset: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    properties: tuple[KeyValue, ...] = ()


class RecordMeta(Struct, frozen=True, gc=False):
    offset_delta: int = 0
    timestamp_delta: int = 0
    headers: tuple[KeyValue, ...] = ()
    properties: tuple[KeyValue, ...] = ()


LAYOUTS: Final[Mapping[type[Struct], tuple[Field, ...]]] = {
    KeyValue: (
        Field("key", 0, Text()),
        Field("value", 1, Text()),
    ),
    RecordBatchMeta: (
        Field("stream_id", 0, Scalar("q"), 0),
        Field("flags", 1, Scalar("h"), 0),
        Field("base_offset", 2, Scalar("q"), 0),
        Field("last_offset_delta", 3, Scalar("i"), 0),
        Field("base_timestamp", 4, Scalar("q"), 0),
        Field("properties", 5, Vector(Table("KeyValue"))),
    ),
    RecordMeta: (
        Field("offset_delta", 0, Scalar("i"), 0),
        Field("timestamp_delta", 1, Scalar("i"), 0),
        Field("headers", 2, Vector(Table("KeyValue"))),
        Field("properties", 3, Vector(Table("KeyValue"))),
    ),
}

__all__ = ["LAYOUTS", "KeyValue", "RecordBatchMeta", "RecordMeta"]
