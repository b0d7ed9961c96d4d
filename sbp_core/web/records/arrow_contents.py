"""Streams in Arrow's IPC format, judged by their messages' metadata before Arrow decodes any.

Arrow believes the metadata: 224 bytes may declare 2**31 rows of nulls, and a compressed buffer the
size that it will have. So the types, rows and sizes of all messages of a body are checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import mul
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.records.arrow_message import (
    check_sizes,
    decoded_sizes,
    read_outline,
    split_pairs,
)
from sbp_core.records.evolution import map_columns
from sbp_core.records.schema_message import check_schema_message
from sbp_core.web.problems import ProblemError, bad_request, refusal

_DECODED_BYTES_MAX: Final = 2 * limits.BATCH_BYTES_MAX
"""Sum of the buffers of a body. Each has padding, and may have bytes that no row refers to."""
_ARRAYS_MAX: Final = 100_000
"""Columns with all that are in them, summed over the batches of a body; each is some objects."""
_VARYING_BITS: Final = 32
"""An offset, which a text, list or map has in each row."""


def read_arrow_stream(
    body: bytearray, target: pa.Schema, check_wanted: Callable[[], None]
) -> pa.RecordBatch:
    """Return the rows of a stream with the columns of `target`, found by name.

    Calls `check_wanted` between batches. Raises ProblemError, SchemaError, RecordBatchError, and
    what pyarrow raises for bytes that are no such stream.
    """
    data = pa.py_buffer(body)
    given = _judge(data, target, check_wanted)
    batches: list[pa.RecordBatch] = []
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(data, options=options) as reader:
        for batch in reader:
            check_wanted()
            batch.validate(full=True)
            batches.append(batch)
    rows = pa.concat_batches(batches or [pa.RecordBatch.from_pylist([], schema=given)])
    return map_columns(rows, target, is_loss_allowed=False)


def check_rows(count: int, bits: int = 0) -> None:
    """Raise ProblemError, 413, for more rows than a batch has, or more than `bits` of it hold."""
    if count > limits.BATCH_RECORDS_MAX:
        raise refusal(
            *(413, "too-many-records"),
            f"{count} records in a request; at most {limits.BATCH_RECORDS_MAX} are allowed: send"
            " them in several requests",
        )
    if bits > 8 * limits.BATCH_BYTES_MAX:
        raise batch_too_large(f"at least {bits // 8}")


def batch_too_large(size_text: str) -> ProblemError:
    """Return the problem of records that do not fit into a record batch."""
    return refusal(
        *(413, "batch-too-large"),
        f"the records have {size_text} bytes as one record batch; at most"
        f" {limits.BATCH_BYTES_MAX} are allowed: send them in several requests",
    )


def row_bits(kinds: Iterable[pa.DataType]) -> int:
    """Return the bits that columns of a stream take at least in each row, also where it is null."""
    bits = 0
    for kind in kinds:
        if pa.types.is_struct(kind):
            bits += row_bits(field.type for field in kind)
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            bits += kind.bit_width
        else:
            bits += _VARYING_BITS
    return bits


def _judge(data: pa.Buffer, target: pa.Schema, check_wanted: Callable[[], None]) -> pa.Schema:
    """Return the schema of a stream whose batches are safe to decode, and fit into `target`."""
    messages = iter(pa.ipc.MessageReader.open_stream(data))
    first = next(messages, None)
    if first is None:
        raise bad_request("the body is no stream of Arrow's IPC format: it has no schema")
    check_schema_message(memoryview(first.serialize()), is_metadata_allowed=True)
    given = pa.ipc.read_schema(first)
    map_columns(pa.RecordBatch.from_pylist([], schema=given), target, is_loss_allowed=False)
    node_bits = list(_node_bits(given, target))
    row_count = array_count = decoded_bytes = bits = 0
    for message in messages:
        check_wanted()
        encoded = memoryview(message.serialize())
        outline = read_outline(encoded, record_count=None)
        sizes = decoded_sizes(outline, encoded)
        decoded_bytes += sum(sizes)
        if decoded_bytes > _DECODED_BYTES_MAX:
            raise batch_too_large(f"{decoded_bytes}")
        check_sizes(outline, sizes)
        lengths = (outline.row_count, *split_pairs(outline.nodes)[0])
        if min(lengths) < 0 or len(lengths) != len(node_bits):
            raise bad_request("an Arrow batch that lacks columns, or has a negative length")
        array_count += len(lengths)
        row_count += outline.row_count
        bits += sum(map(mul, lengths, node_bits))
        if array_count > _ARRAYS_MAX:
            raise bad_request(f"Arrow batches of more than {_ARRAYS_MAX} columns: join them")
        check_rows(row_count, bits)
    return given


def _node_bits(given: Iterable[pa.Field], target: Iterable[pa.Field]) -> Iterator[int]:
    """Yield the bits of the target for each value of a node, in the order of the nodes.

    The first number is for the rows: columns that are not given take bits, too.
    """
    wanted = {field.name: field.type for field in target}
    nodes = [bits for field in given for bits in _array_bits(field.type, wanted.pop(field.name))]
    yield row_bits(wanted.values())
    yield from nodes


def _array_bits(given: pa.DataType, target: pa.DataType) -> Iterator[int]:
    if pa.types.is_struct(given):
        yield from _node_bits(given, target)
        return
    yield row_bits([target])
    if pa.types.is_list(given):
        yield from _array_bits(given.value_type, target.value_type)
    elif pa.types.is_map(given):
        yield 0  # the entries, each a key and a value
        yield from _array_bits(given.key_type, target.key_type)
        yield from _array_bits(given.item_type, target.item_type)
