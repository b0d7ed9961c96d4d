"""Arrow's encapsulated schema message, checked before Arrow reads it.

The message has the form of arrow_message.py, without buffers. Arrow verifies that its metadata lie
inside, but reads a table as often as it is referred to: a few bytes can describe millions of
columns, or one long name a thousand times. The tables here are the parts of Arrow's Schema.fbs that
are needed, with its ids; the types of columns are left to Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError, SchemaError
from sbp_core.records.arrow_message import (
    KIND_LAYOUT,
    PREFIX_BYTES,
    VERSION_5,
    MessageKind,
    find_buffers,
)
from sbp_core.wire.flat import Field, Scalar, Schema, Table, Text, Vector

_HEADER_SCHEMA: Final = 1
_LITTLE_ENDIAN: Final = 0


LOGICAL_TYPE_KEY: Final = "logical_type"
"""The one key of metadata that a field may have (SPEC "Columns")."""


class Metadata(Struct, frozen=True, gc=False):
    """Table KeyValue: the logical type of a field."""

    key: str = ""
    value: str = ""


class DictionaryEncoding(Struct, frozen=True, gc=False):
    """Table DictionaryEncoding, which no column of a stream has."""


class SchemaField(Struct, frozen=True, gc=False):
    """Table Field: a column with its nested columns."""

    name: str = ""
    dictionary: DictionaryEncoding | None = None
    children: tuple[SchemaField, ...] = ()
    custom_metadata: tuple[Metadata, ...] = ()


class SchemaHeader(Struct, frozen=True, gc=False):
    """Table Schema."""

    endianness: int = 0
    fields: tuple[SchemaField, ...] = ()
    custom_metadata: tuple[Metadata, ...] = ()


class SchemaMessage(Struct, frozen=True, gc=False):
    """Table Message whose header is a Schema."""

    header: SchemaHeader | None = None
    body_length: int = 0


SCHEMA_MESSAGE_SCHEMA: Final = Schema(
    {
        Metadata: (
            Field("key", 0, Text()),
            Field("value", 1, Text()),
        ),
        DictionaryEncoding: (),
        SchemaField: (
            Field("name", 0, Text()),
            Field("dictionary", 4, Table("DictionaryEncoding")),
            Field("children", 5, Vector(Table("SchemaField"))),
            Field("custom_metadata", 6, Vector(Table("Metadata"))),
        ),
        SchemaHeader: (
            Field("endianness", 0, Scalar("h"), 0),
            Field("fields", 1, Vector(Table("SchemaField"))),
            Field("custom_metadata", 2, Vector(Table("Metadata"))),
        ),
        MessageKind: KIND_LAYOUT,
        SchemaMessage: (
            Field("header", 2, Table("SchemaHeader")),
            Field("body_length", 3, Scalar("q"), 0),
        ),
    },
    bytes_max=limits.SCHEMA_BYTES_MAX,
    # A map takes two levels; the message, its schema and the innermost columns are beside those.
    depth_max=2 * limits.SCHEMA_DEPTH_MAX + 3,
    is_whole=False,  # most of a field, such as its type, is left to Arrow
)


def check_schema_message(data: memoryview, *, is_metadata_allowed: bool = False) -> None:
    """Check that `data` is one schema message and nothing else, safe to hand to Arrow.

    `is_metadata_allowed` is for schemas of other programs, whose metadata no stream stores. Raises
    SchemaError: another kind of message, more columns or longer texts than a stream may have,
    dictionaries, metadata other than logical types.
    """
    try:
        header = _read_header(data)
    except (HeaderError, RecordBatchError) as error:
        raise SchemaError(f"bytes that are no schema message of Arrow: {error}") from error
    if header.endianness != _LITTLE_ENDIAN:
        raise SchemaError("a schema of big-endian columns; streams have little-endian ones")
    has_metadata = bool(header.custom_metadata)
    text_bytes = 0
    for count, field in enumerate(_all_fields(header.fields), 1):
        text_bytes += len(field.name.encode())
        text_bytes += sum(len(each.value.encode()) for each in field.custom_metadata)
        if count > limits.SCHEMA_FIELDS_MAX or text_bytes > limits.SCHEMA_BYTES_MAX:
            raise SchemaError(
                f"a schema of more than {limits.SCHEMA_FIELDS_MAX} columns with all that are in"
                " them, or with names and logical types of more than"
                f" {limits.SCHEMA_BYTES_MAX} bytes"
            )
        keys = [each.key for each in field.custom_metadata]
        has_metadata = has_metadata or keys not in ([], [LOGICAL_TYPE_KEY])
        if field.dictionary is not None:
            raise SchemaError("a schema with a column of a dictionary, which no stream can have")
    if has_metadata and not is_metadata_allowed:
        raise SchemaError(
            f"a schema with metadata; in that of a stream a field has {LOGICAL_TYPE_KEY} at most"
        )


def _read_header(data: memoryview) -> SchemaHeader:
    end = find_buffers(data, metadata_bytes_max=limits.SCHEMA_BYTES_MAX)
    metadata = bytes(data[PREFIX_BYTES:end])
    kind = SCHEMA_MESSAGE_SCHEMA.decode(MessageKind, metadata)
    if kind.version != VERSION_5 or kind.header_type != _HEADER_SCHEMA:
        raise SchemaError(
            f"Arrow message of type {kind.header_type}, version {kind.version}; expected a schema"
            f" ({_HEADER_SCHEMA}) of version {VERSION_5}"
        )
    message = SCHEMA_MESSAGE_SCHEMA.decode(SchemaMessage, metadata)
    if message.header is None or message.body_length or end != len(data):
        raise SchemaError(
            f"a schema message with {len(data) - end} bytes after its metadata, or without a schema"
        )
    return message.header


def _all_fields(fields: tuple[SchemaField, ...]) -> Iterator[SchemaField]:
    """Yield columns and all that are in them; the reader has bounded how deep that goes."""
    for field in fields:
        yield field
        yield from _all_fields(field.children)
