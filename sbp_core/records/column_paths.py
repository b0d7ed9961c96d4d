"""Columns by their paths: `place.city`, or the names `place` and `city`, is a field of structs.

Case does not matter, as in Spark: the columns of a stream never differ by case only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.wording import listed

_DOT: Final = "."


def find_column(there: pa.Schema, path: Sequence[str]) -> tuple[tuple[str, ...], pa.Field]:
    """Find a column, or a field of structs in it; return its names as the schema spells them.

    Raises SchemaError if there is no such column.
    """
    field = _named(there, path[0], "")
    names = [field.name]
    for name in path[1:]:
        place = _DOT.join(names)
        if not pa.types.is_struct(field.type):
            raise SchemaError(f"column {place}.{name} does not exist: {place} is no struct")
        field = _named(field.type, name, f"{place}.")
        names.append(field.name)
    return tuple(names), field


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
