"""Which parts of the record batches of a schema a reader wants: the request of a pruned FETCH.

Servers store bodies unread and know no schemas; readers do. So a reader translates the columns that
it wants into the parts of an Arrow message, which are the same in all messages of a schema:

    column            field nodes                 buffers
    fixed width       one                         validity, values
    binary, string    one                         validity, offsets, bytes
    list, map         one, then its elements      validity, offsets, then those of its elements
    struct            one, then its fields        validity, then those of its fields

cutting.py leaves the other parts out. A batch that was cut names its columns by their fingerprint,
and is decoded as any batch that has just these. A server need not cut: readers decode both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sbp_core.records.arrow_body import maybe_buffer_count
from sbp_core.records.stream_schema import StreamSchema
from sbp_core.wire._generated import Projection

__all__ = ["KeptColumns", "Projection", "maybe_kept_columns", "maybe_kept_plain"]


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """The columns of one schema that are wanted, and the `projection` that asks a server for them.

    A batch that was cut has the columns of `schema`.
    """

    schema: StreamSchema
    projection: Projection


def maybe_kept_columns(schema: StreamSchema, wanted: pa.Schema) -> KeptColumns | None:
    """Return the columns of a stream's schema that `wanted` has, too; None if these are all.

    Columns, and fields of structs in them, are compared by name, as by `map_columns`. Columns that
    the stream lacks are left out, and types are the stream's.
    """
    return _maybe_kept(schema.arrow, wanted, schema.fingerprint)


def maybe_kept_plain(rows_schema: pa.Schema, names: Collection[str]) -> KeptColumns | None:
    """Return the columns of plain records that have one of the names; None if these are all."""
    wanted = pa.schema([field for field in rows_schema if field.name in names])
    return _maybe_kept(rows_schema, wanted, None)


def _maybe_kept(
    schema: pa.Schema, wanted: pa.Schema, fingerprint: str | None
) -> KeptColumns | None:
    walk = _Walk()
    kept = StreamSchema(pa.schema(walk.fields(list(schema), list(wanted))))
    if all(walk.nodes):
        return None
    nodes, buffers = _bits(walk.nodes), _bits(walk.buffers)
    return KeptColumns(kept, Projection(fingerprint, nodes, buffers, kept.fingerprint))


class _Walk:
    """Notes for each node and buffer whether it is wanted, in the order of a message."""

    def __init__(self) -> None:
        self.nodes: list[bool] = []
        self.buffers: list[bool] = []

    def fields(self, there: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the fields that are wanted."""
        types = {field.name: field.type for field in wanted}
        kept = []
        for field in there:
            kind = self._type(field.type, types.get(field.name))
            if kind is not None:
                kept.append(field.with_type(kind))
        return kept

    def _type(self, there: pa.DataType, wanted: pa.DataType | None) -> pa.DataType | None:
        """Return what is left of a column's type, None if the column is not wanted."""
        self.nodes.append(wanted is not None)
        count = maybe_buffer_count(there)
        assert count is not None, f"{there} is no type of a stream's column"
        self.buffers += [wanted is not None] * count
        if there.num_fields == 0:
            return None if wanted is None else there
        return self._nested(there, wanted)

    def _nested(self, there: pa.DataType, wanted: pa.DataType | None) -> pa.DataType | None:
        if pa.types.is_struct(there):
            given = list(wanted) if wanted is not None and pa.types.is_struct(wanted) else []
            if wanted is not None and not {each.name for each in given} & set(there.names):
                given = list(there)  # a struct without fields would be no column of a stream
            kept = self.fields(list(there), given)
            return None if wanted is None else pa.struct(kept)
        if pa.types.is_list(there):
            is_same = wanted is not None and pa.types.is_list(wanted)
            element = wanted.value_type if wanted is not None and is_same else wanted
            kind = self._type(there.value_type, element)
            return None if kind is None else pa.list_(there.value_field.with_type(kind))
        is_map = wanted is not None and pa.types.is_map(wanted)
        self.nodes.append(wanted is not None)  # the struct of key and value
        self.buffers.append(wanted is not None)
        self._type(there.key_type, None if wanted is None else there.key_type)
        item = wanted.item_type if wanted is not None and is_map else wanted
        kind = self._type(there.item_type, item)
        return None if kind is None else pa.map_(there.key_field, there.item_field.with_type(kind))


def _bits(flags: Sequence[bool]) -> bytes:
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()
