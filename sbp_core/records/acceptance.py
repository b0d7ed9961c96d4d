"""Whether a record batch may be stored: a server's look at it, which decodes no body.

A batch that claims more records than it has would be acknowledged, take their offsets, and fail
every reader. So its count is compared with what its encoding tells of it:

    | encoding | compared with                                                            |
    |----------|--------------------------------------------------------------------------|
    | rows     | the rows of the Arrow message, the lengths of its columns and buffers    |
    | columns  | the rows of the Arrow message, the length of its first column; a bit for  |
    |          | each row at least                                                        |
    | none     | the records of the sequence, which are counted: fewer may be declared,   |
    |          | as writers disagree on whether it is the number or the last index        |
    | another  | the bytes of the body: a record has one at least                         |

Nothing is decompressed: the sizes that compressed buffers declare count. What the values are worth
only a reader finds out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_message import (
    check_outline,
    check_sizes,
    decoded_sizes,
    read_outline_without_arrow,
    split_pairs,
)
from sbp_core.records.columns import COLUMNS_ENCODING
from sbp_core.records.envelope import Envelope, Octets, peek_batch
from sbp_core.records.rows import ROWS_ENCODING

_BITS: Final = 8
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_ROWS_NODES: Final = 7
"""Lengths of: key, value, headers, their entries, names and values, timestamp."""
_ROWS_BUFFERS: Final = 17
"""Three of each binary or string column, two of a map or timestamp, one of a struct."""
_OFFSET_BYTES: Final = 4
_TIMESTAMP_BYTES: Final = 8


def accept_batch(data: Octets) -> Envelope:
    """Return `data`, if it is exactly one record batch that a server may store, body unread.

    The base offset may be anything, for the server is about to assign it. SPEC "APPEND". Raises
    RecordBatchError, which says what is wrong and what to do.
    """
    envelope = peek_batch(data)
    check = _CHECKS.get(envelope.encoding, _check_unknown)
    try:
        check(envelope)
    except RecordBatchError as error:
        raise RecordBatchError(
            f"{error}; the batch declares {envelope.record_count} records and has a body of"
            f" {len(envelope.body)} bytes. Nothing of this batch was stored, since no reader could"
            " decode it; correct the client that encodes it"
        ) from error
    return envelope


def _check_sequence(envelope: Envelope) -> None:
    if not 0 <= envelope.declared_count <= envelope.record_count:
        raise RecordBatchError(
            f"a record batch declares {envelope.declared_count} records, and its sequence has"
            f" {envelope.record_count}"
        )


def _check_rows(envelope: Envelope) -> None:
    count, body = envelope.record_count, envelope.body
    outline = read_outline_without_arrow(body, record_count=count)
    sizes = decoded_sizes(outline, body)
    check_sizes(outline, sizes)
    lengths, _ = split_pairs(outline.nodes)
    if len(lengths) != _ROWS_NODES or len(sizes) != _ROWS_BUFFERS:
        raise RecordBatchError(
            f"Arrow message with {len(lengths)} columns and {len(sizes)} buffers, which are not"
            " those of the rows encoding"
        )
    key, value, headers, entries, names, texts, timestamp = lengths
    if not key == value == headers == timestamp == count or not entries == names == texts:
        raise RecordBatchError(
            f"a record batch declares {count} records, and the lengths of its columns key, value,"
            f" headers (entries, names, values) and timestamp are {key}, {value}, {headers}"
            f" ({entries}, {names}, {texts}) and {timestamp}"
        )
    if (
        min(sizes[1], sizes[4], sizes[7]) < _OFFSET_BYTES * (count + 1)
        or (entries and min(sizes[10], sizes[13]) < _OFFSET_BYTES * (entries + 1))
        or sizes[16] < _TIMESTAMP_BYTES * count
    ):
        raise RecordBatchError(
            f"a record batch declares {count} records, and the buffers of its Arrow message are"
            " too short for these"
        )


def _check_columns(envelope: Envelope) -> None:
    count, body = envelope.record_count, envelope.body
    fingerprint = envelope.schema_fingerprint
    if fingerprint is None or _FINGERPRINT.fullmatch(fingerprint) is None:
        raise RecordBatchError(
            "a record batch of columns that does not name its schema by 32 hexadecimal digits"
        )
    outline = read_outline_without_arrow(body, record_count=count)
    size = check_outline(outline, body)
    first = next(iter(split_pairs(outline.nodes)[0]), 0)
    if first != count or _BITS * size.decoded_bytes < count:
        raise RecordBatchError(
            f"a record batch declares {count} records, and its Arrow message has {first} values in"
            f" the first column and {size.decoded_bytes} bytes in all"
        )


def _check_unknown(envelope: Envelope) -> None:
    if envelope.record_count > len(envelope.body):
        raise RecordBatchError(
            f"a record batch declares {envelope.record_count} records in a body of"
            f" {len(envelope.body)} bytes, which is too short for these"
        )


_CHECKS: Final[dict[str | None, Callable[[Envelope], None]]] = {
    None: _check_sequence,
    ROWS_ENCODING: _check_rows,
    COLUMNS_ENCODING: _check_columns,
}
