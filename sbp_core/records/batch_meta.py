"""The metadata of a record batch, RecordBatchMeta (schemas/record_batch.fbs): bytes and values.

Most batches of a stream differ in their time only, or in the lengths of properties. So encoders
keep what is around the time, and decoders the places of the fields (`wire.flat`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sbp_core import limits
from sbp_core.wire._generated import LAYOUTS, KeyValue, RecordBatchMeta
from sbp_core.wire.flat import Bytes2D, Schema, Template

_ENCODING: Final = "encoding"
_BODY_BYTES: Final = "body_bytes"
_SCHEMA_FINGERPRINT: Final = "schema"
_TIMESTAMP_COLUMN: Final = "timestamp_column"
_PROJECTION: Final = "projection"
_STATISTICS: Final = "statistics"
_SKIPPED: Final = "skipped"
_ORIGIN: Final = "origin"
_TIME: Final = struct.Struct("<q")
_TIME_MIN: Final = -(2**63)
_TIME_MAX: Final = 2**63 - 1
_MARK: Final = b"\xff\xfe\xfd\xff\xfe\xfd\xff\xfe"  # no text in UTF-8 has any of these bytes
(_MARK_MS,) = _TIME.unpack(_MARK)
_SHAPES_KNOWN: Final = 64
_SCHEMA: Final = Schema(LAYOUTS, bytes_max=limits.BATCH_METADATA_BYTES_MAX)


_NUMBERS: Final = ("stream_id", "last_offset_delta", "base_timestamp")
_PROPERTIES: Final = (
    _ENCODING,
    _BODY_BYTES,
    _SCHEMA_FINGERPRINT,
    _TIMESTAMP_COLUMN,
    _STATISTICS,
    _PROJECTION,
    _SKIPPED,
    _ORIGIN,
)


class BatchMeta(NamedTuple):
    """The metadata of a batch. `record_count` is its field `last_offset_delta`."""

    stream_id: int
    record_count: int
    base_timestamp_ms: int
    encoding: str | None = None
    body_bytes: str | None = None
    schema_fingerprint: str | None = None
    timestamp_column: str | None = None
    statistics: str | None = None
    projection: str | None = None
    skipped: str | None = None
    origin: str | None = None
    """Names the batch at its sender, so that batches with equal records differ."""


def encode_meta(meta: BatchMeta) -> bytes:
    """Return the bytes of metadata. Raises HeaderError when they would break a limit."""
    time_ms = meta.base_timestamp_ms
    if time_ms == 0 or not _TIME_MIN <= time_ms <= _TIME_MAX:  # zeros are not written
        return _encode(meta)
    before, behind = _around_time(meta._replace(base_timestamp_ms=_MARK_MS))
    return before + _TIME.pack(time_ms) + behind


@lru_cache(_SHAPES_KNOWN)
def _around_time(meta: BatchMeta) -> tuple[bytes, bytes]:
    """Return encoded metadata in front of and behind the base timestamp, which is _MARK_MS here.

    Most batches of a stream with as many records and bytes differ in nothing else.
    """
    before, _, behind = _encode(meta).partition(_MARK)
    return before, behind


def _encode(meta: BatchMeta) -> bytes:
    properties = {
        _ENCODING: meta.encoding,
        _BODY_BYTES: meta.body_bytes,
        _SCHEMA_FINGERPRINT: meta.schema_fingerprint,
        _TIMESTAMP_COLUMN: meta.timestamp_column,
        _STATISTICS: meta.statistics,
        _PROJECTION: meta.projection,
        _SKIPPED: meta.skipped,
        _ORIGIN: meta.origin,
    }
    return _SCHEMA.encode(
        RecordBatchMeta(
            stream_id=meta.stream_id,
            last_offset_delta=meta.record_count,
            base_timestamp=meta.base_timestamp_ms,
            properties=tuple(KeyValue(*item) for item in properties.items() if item[1] is not None),
        )
    )


class MetaTemplate:
    """Metadata of one size and layout, of many batches at once.

    `places` is like a BatchMeta that has, for each field, the slice of the metadata with the value,
    or 0 or None for a field that is not there.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.places = self._picked(template.places())

    def fitting_count(self, rows: Bytes2D) -> int:
        """Return how many of the first rows are such metadata."""
        return self._template.fitting_count(rows)

    def columns(self, rows: Bytes2D) -> Any:
        """Return a BatchMeta of rows that all fit: a column for each value; texts are bytes."""
        return self._picked(self._template.columns(rows))

    @staticmethod
    def _picked(found: tuple[Any, ...]) -> Any:
        pick = found[0]
        return BatchMeta(*pick((*found, 0, None)))


def maybe_meta_template(size_bytes: int) -> MetaTemplate | None:
    """Return the template of metadata of this size, if some were read before."""
    template = _SCHEMA.maybe_excerpt(RecordBatchMeta, size_bytes)
    return None if template is None else MetaTemplate(template)


def read_meta(encoded: bytes, schema: Schema = _SCHEMA) -> BatchMeta:
    """Return the metadata of a batch. `schema` remembers its shape. Raises HeaderError."""
    found = schema.maybe_recognise(RecordBatchMeta, encoded)
    if found is not None:
        pick = found[0]
        return BatchMeta(*pick((*found, 0, None)))
    meta = schema.decode(RecordBatchMeta, encoded)
    numbers = [name for name in _NUMBERS if getattr(meta, name)]  # zeros are not written
    values = [f"properties.{at}.value" for at in range(len(meta.properties))]
    of_numbers = {name: at for at, name in enumerate(numbers, 1)}
    of_values = {item.key: at for at, item in enumerate(meta.properties, 1 + len(numbers))}
    pick = itemgetter(
        *(of_numbers.get(name, -2) for name in _NUMBERS),
        *(of_values.get(key, -1) for key in _PROPERTIES),
    )
    schema.remember(RecordBatchMeta, encoded, pick, [*numbers, *values])
    properties = {item.key: item.value for item in meta.properties}
    return BatchMeta(
        meta.stream_id,
        meta.last_offset_delta,
        meta.base_timestamp,
        *map(properties.get, _PROPERTIES),
    )
