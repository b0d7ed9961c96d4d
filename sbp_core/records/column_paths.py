"""Columns by their paths, as people write them: `place.city` is a field of the structs in `place`.

Case does not matter, as in Spark: the columns of a stream never differ by case only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.wording import listed

_DOT: Final = "."


def find_column(there: pa.Schema, path: str) -> tuple[str, pa.Field]:
    """Return the path of a column in the spelling of its schema, and the column.

    A dot leads into a struct. Raises SchemaError if there is no such column.
    """
    first, *others = path.split(_DOT)
    field = _named(there, first, "")
    place = field.name
    for name in others:
        if not pa.types.is_struct(field.type):
            raise SchemaError(f"column {place}.{name} does not exist: {place} is no struct")
        field = _named(field.type, name, f"{place}.")
        place = f"{place}.{field.name}"
    return place, field


def _named(fields: Iterable[pa.Field], name: str, place: str) -> pa.Field:
    known = {field.name.lower(): field for field in fields}
    field = known.get(name.lower())
    if field is not None:
        return field
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = (
        f"did you mean {place}{known[near[0]].name}?"
        if near
        else f"there are {listed([f'{place}{field.name}' for field in known.values()])}"
    )
    raise SchemaError(f"column {place}{name} does not exist; {hint}")
