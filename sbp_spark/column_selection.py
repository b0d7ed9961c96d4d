"""The option `columns`: some of the columns of a source, and of the fields of structs in them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from sbp_core.errors import ConfigurationError
from sbp_core.wording import listed

_Tree = dict[str, "_Tree"]
"""Maps names in lower case to the wanted fields; an empty tree wants the whole column."""


def select_columns(there: StructType, paths: Sequence[str]) -> StructType:
    """Return the columns that are named, in the order in which they are.

    A dot leads into a struct, or into the structs of an array. Case does not matter. Raises
    ConfigurationError, naming all columns that do not exist.
    """
    tree: _Tree = {}
    for path in paths:
        _add(tree, path.lower().split("."))
    faults: list[str] = []
    selected = _select(there, tree, "", faults)
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(
            f"option columns: the streams do not have these columns:\n{lines}\nThey have"
            f" ({listed(there.names)}); name some of them, or give their types in .schema(...)"
        )
    return selected


def _add(tree: _Tree, names: Sequence[str]) -> None:
    """Add a path; a column that is wanted as a whole stays so."""
    for at, name in enumerate(names):
        is_whole = name in tree and not tree[name]
        if is_whole:
            return
        tree = tree.setdefault(name, {})
        if at == len(names) - 1:
            tree.clear()


def _select(there: StructType, tree: _Tree, place: str, faults: list[str]) -> StructType:
    known = {field.name.lower(): field for field in there}
    fields = []
    for name, inner in tree.items():
        field = known.get(name)
        if field is None:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]].name}?" if near else ""
            faults.append(f"column {place}{name} does not exist{hint}")
            continue
        kind = field.dataType
        if inner:
            kind = _inside(kind, inner, f"{place}{field.name}.", faults)
        fields.append(StructField(field.name, kind, field.nullable, field.metadata))
    return StructType(fields)


def _inside(kind: DataType, tree: _Tree, place: str, faults: list[str]) -> DataType:
    if isinstance(kind, StructType):
        return _select(kind, tree, place, faults)
    if isinstance(kind, ArrayType):
        return ArrayType(_inside(kind.elementType, tree, place, faults), kind.containsNull)
    faults += [f"column {place}{name} does not exist: {place[:-1]} is no struct" for name in tree]
    return kind
