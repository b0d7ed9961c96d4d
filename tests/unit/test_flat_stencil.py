"""Values that are written like one before: as from scratch, and never others than meant."""

import pytest
from flat_tables import LAYOUTS, Leaf, Node

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire import headers
from sbp_core.wire._generated.headers import LAYOUTS as HEADER_LAYOUTS
from sbp_core.wire.flat import Schema
from sbp_core.wire.headers import decode_header, encode_header
from sbp_core.wire.status import SUCCESS


def taught(*values):
    """A schema that has a stencil of each of the values."""
    schema = Schema(LAYOUTS)
    for value in values:
        assert len({schema.encode(value) for _ in range(3)}) == 1
    return schema


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (Leaf(number=5), Leaf(number=-6)),
        (Leaf(flag=True, number=5, text="abc"), Leaf(flag=True, number=6, text="xyz")),
        (Leaf(text=""), Leaf(text="")),
        (Leaf(text="ä"), Leaf(text="ab")),
        (Node(data=b"abc"), Node(data=memoryview(b"xyz"))),
        (Node(leaf=Leaf(number=5)), Node(leaf=Leaf(number=6))),
        (
            Node(b"a", leaf=Leaf(text="b"), children=(Node(), Node(b"c", leaf=Leaf(True)))),
            Node(b"d", leaf=Leaf(text="e"), children=(Node(), Node(b"f", leaf=Leaf(True)))),
        ),
    ],
    ids=repr,
)
def test_a_value_of_the_same_shape(known, other):
    schema = taught(known)
    assert len(schema._stencils) == 1
    assert schema.encode(other) == Schema(LAYOUTS).encode(other)
    assert schema.decode(type(other), schema.encode(other)) == other
    assert len(schema._stencils) == 1


@pytest.mark.parametrize(
    "other",
    [
        Leaf(),
        Leaf(number=5),
        Leaf(flag=True, number=5),
        Leaf(flag=True, text="abc"),
        Leaf(flag=True, number=5, text="ab"),
        Leaf(flag=True, number=5, text=""),
        Node(leaf=Leaf(flag=True, number=5, text="abc")),
    ],
    ids=repr,
)
def test_a_value_of_another_shape(other):
    schema = taught(Leaf(flag=True, number=5, text="abc"))
    assert schema.encode(other) == Schema(LAYOUTS).encode(other)


@pytest.mark.parametrize(
    "value",
    [
        Node(numbers=(1,)),
        Node(texts=("a",)),
        Node(pairs=((1, 2),)),
        Node(children=(Node(numbers=(1,)),)),
        Node(children=(Node(),) * (limits.STENCIL_TABLES_MAX + 1)),
        Leaf(text="x" * limits.TEMPLATE_BYTES_MAX),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_values_without_a_shape_are_written_from_scratch(value):
    schema = taught(value)
    assert len(schema._stencils) == 0
    assert schema.decode(type(value), schema.encode(value)) == value


@pytest.mark.parametrize(
    "misfit",
    [
        Leaf(number=2**63, text="abc"),
        Leaf(number="7", text="abc"),
        Leaf(number=1.5, text="abc"),
        Leaf(number=5, text=b"abc"),
        Leaf(number=5, text="\ud800"),
        Node(leaf=Node()),
        Node(data="abc"),
        Node(children=(None,)),
        Node(children=7),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused_all_the_same(misfit):
    known = (
        Leaf(number=5, text="abc"),
        Node(data=b"abc"),
        Node(leaf=Leaf()),
        Node(children=(Node(),)),
    )
    schema = taught(*known)
    with pytest.raises(HeaderError) as anew:
        Schema(LAYOUTS).encode(misfit)
    with pytest.raises(HeaderError) as refused:
        schema.encode(misfit)
    assert str(refused.value) == str(anew.value)


@pytest.mark.parametrize("known", [Node(children=[]), Node(children=(Node(children=[]),))])
def test_an_empty_list_does_not_change_how_an_empty_tuple_is_written(known):
    """The list is no default of the field, so it is written; the tuple is left out."""
    schema = taught(known)
    for other in (Node(), Node(children=(Node(),))):
        assert schema.encode(other) == Schema(LAYOUTS).encode(other) != schema.encode(known)


def test_few_shapes_are_remembered(monkeypatch):
    monkeypatch.setattr(limits, "TEMPLATES_MAX", 3)
    schema = Schema(LAYOUTS)
    for length in range(40):
        value = Leaf(text="x" * length)
        for _ in range(3):
            assert schema.decode(Leaf, schema.encode(value)) == value
        assert 1 <= len(schema._stencils) <= 3
        assert len(schema._stencils._seen_once) <= 3


def test_the_headers_of_appends_and_fetches_have_a_shape():
    status = headers.Status(code=0, handler_duration_us=123)
    where = headers.StreamRange(stream_id=5, range_index=0)
    for value in (
        headers.AppendRequest(500, (headers.AppendInfo(where, 1, 1024, 5, "writer", 7),)),
        headers.AppendResponse(0, (headers.AppendResult(5, 1, 7, 8, SUCCESS),), status),
        headers.FetchRequest(100, 1, (headers.FetchInfo(where, 0, 7, 1024, 5),) * 3),
        headers.FetchResponse(0, (headers.FetchResult(5, 0, 1, SUCCESS, 1024, 8),), status),
        headers.HeartbeatRequest("client", 1),
    ):
        schema = Schema(HEADER_LAYOUTS)
        encoded = {schema.encode(value) for _ in range(3)}
        assert len(schema._stencils) == 1
        assert encoded == {encode_header(value)}
        assert decode_header(type(value), *encoded) == value
