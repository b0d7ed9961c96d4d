"""Two tables that between them have a field of every kind."""

from msgspec import Struct

from sbp_core.wire.flat import Bytes, Field, Scalar, Schema, Structs, Table, Text, Vector


class Leaf(Struct, frozen=True, gc=False):
    flag: bool = False
    number: int = -1
    text: str | None = None


class Node(Struct, frozen=True, gc=False):
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    leaf: Leaf | None = None
    children: tuple["Node", ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()


LEAF = (Field("flag", 0, Scalar("?"), False), Field("number", 1, Scalar("q"), -1))
LAYOUTS = {
    Leaf: (*LEAF, Field("text", 2, Text())),
    Node: (
        Field("data", 0, Bytes()),
        Field("numbers", 1, Vector(Scalar("i"))),
        Field("texts", 2, Vector(Text())),
        Field("leaf", 3, Table("Leaf")),
        Field("children", 4, Vector(Table("Node"))),
        Field("pairs", 5, Structs("qq")),
    ),
}
SCHEMA = Schema(LAYOUTS)
