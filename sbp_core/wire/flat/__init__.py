"""FlatBuffers tables <-> frozen structs, driven by the layouts that the schema generates."""

from __future__ import annotations

from sbp_core.wire.flat.kinds import Field, Kind, Octets, Scalar, Structs, Table, Text, Vector
from sbp_core.wire.flat.schema import Schema, repr_without

__all__ = [
    "Field",
    "Kind",
    "Octets",
    "Scalar",
    "Schema",
    "Structs",
    "Table",
    "Text",
    "Vector",
    "repr_without",
]
