"""Headers that are recognised by their layout: read as from scratch, and never by mistake."""

import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import flatbuffers
import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat import Schema
from sbp_core.wire.flat.reader import ReadTable
from sbp_core.wire.flat.template import maybe_excerpt, maybe_template
from tests.support.tables import LAYOUTS, Leaf, Node

TABLES = {table.__name__: ReadTable(table, LAYOUTS[table]) for table in LAYOUTS}
SCHEMA = Schema(LAYOUTS)

FULL = Node(
    data=b"bytes",
    numbers=(1, -2, 3),
    texts=("one", "", "drei"),
    leaf=Leaf(flag=True, number=7, text="text"),
    children=(Node(), Node(numbers=(9,)), Node(leaf=Leaf())),
    pairs=((1, 2), (-3, 4)),
)
OTHER = Node(
    data=b"BYTES",
    numbers=(4, 5, -6),
    texts=("two", "", "vier"),
    leaf=Leaf(flag=True, number=-8, text="TEXT"),
    children=(Node(), Node(numbers=(10,)), Node(leaf=Leaf())),
    pairs=((5, -6), (7, 8)),
)


def template_of(value):
    return maybe_template(TABLES, type(value).__name__, SCHEMA.encode(value))


@pytest.mark.parametrize("value", [Leaf(), Leaf(text="x"), Node(), FULL], ids=repr)
def test_the_buffer_itself(value):
    assert template_of(value).maybe_read(SCHEMA.encode(value)) == value


def test_another_one_of_the_same_layout():
    data = SCHEMA.encode(OTHER)
    assert template_of(FULL).maybe_read(data) == OTHER


def test_another_layout_of_the_same_length_is_not_taken():
    template = template_of(Leaf(number=5))
    other = SCHEMA.encode(Leaf(number=5))
    vtable_at = 4
    (vtable_bytes,) = struct.unpack_from("<H", other, vtable_at)
    for at in range(vtable_at, vtable_at + vtable_bytes):
        changed = bytearray(other)
        changed[at] ^= 4
        assert template.maybe_read(bytes(changed)) is None


def test_texts_that_are_not_utf8_are_refused_all_the_same():
    schema = Schema(LAYOUTS)
    data = schema.encode(Leaf(text="abcd"))
    assert [schema.decode(Leaf, data) for _ in range(3)] == [Leaf(text="abcd")] * 3
    with pytest.raises(HeaderError, match="Leaf"):
        schema.decode(Leaf, data.replace(b"abcd", b"ab\xff\xfe"))


def test_every_damaged_byte_reads_as_it_does_from_scratch():
    encoded = SCHEMA.encode(FULL)
    warm = Schema(LAYOUTS)
    warm.decode(Node, encoded)
    assert warm._templates

    def outcome(schema, data):
        try:
            return schema.decode(Node, data)
        except HeaderError as error:
            return str(error)

    for at in range(len(encoded)):
        for flip in (1, 0x80, 0xFF):
            damaged = encoded[:at] + bytes([encoded[at] ^ flip]) + encoded[at + 1 :]
            assert outcome(warm, damaged) == outcome(Schema(LAYOUTS), damaged), (at, flip)


def test_a_part_that_is_used_twice_is_no_template():
    builder = flatbuffers.Builder()
    text = builder.CreateString("shared")
    builder.StartVector(4, 2, 4)
    builder.PrependUOffsetTRelative(text)
    builder.PrependUOffsetTRelative(text)
    texts = builder.EndVector()
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(2, texts, 0)
    builder.Finish(builder.EndObject())
    data = bytes(builder.Output())
    assert SCHEMA.decode(Node, data) == Node(texts=("shared", "shared"))
    assert maybe_template(TABLES, "Node", data) is None
    assert maybe_excerpt(TABLES, "Node", data, None, ["texts.0"]) is None


PATHS = ("leaf.number", "data", "pairs", "texts.2", "children.1.numbers.0", "numbers.0")


def test_an_excerpt_is_what_is_known_and_the_contents_at_its_paths():
    excerpt = maybe_excerpt(TABLES, "Node", SCHEMA.encode(FULL), "known", PATHS)
    other = replace(
        FULL,
        leaf=replace(FULL.leaf, number=-8),
        data=b"BYTES",
        pairs=OTHER.pairs,
        texts=("one", "", "v\u00efr"),
        children=(Node(), Node(numbers=(10,)), Node(leaf=Leaf())),
        numbers=(4, -2, 3),
    )
    pairs = struct.pack("<4q", 5, -6, 7, 8)
    found = excerpt.maybe_read(SCHEMA.encode(other))
    assert found == ("known", -8, b"BYTES", pairs, "v\u00efr", 10, 4)


@pytest.mark.parametrize(
    "other",
    [
        replace(FULL, numbers=(1, -2, 4)),
        replace(FULL, texts=("two", "", "drei")),
        replace(FULL, leaf=replace(FULL.leaf, flag=False)),
        replace(FULL, leaf=replace(FULL.leaf, text="TEXT")),
        OTHER,
    ],
    ids=repr,
)
def test_a_message_that_differs_elsewhere_does_not_match_the_template(other):
    excerpt = maybe_excerpt(TABLES, "Node", SCHEMA.encode(FULL), "known", PATHS)
    assert excerpt.maybe_read(SCHEMA.encode(other)) is None


def test_there_is_no_excerpt_of_what_is_not_there():
    data = SCHEMA.encode(Leaf(text="x"))
    assert maybe_excerpt(TABLES, "Leaf", data, None, ["text"]) is not None
    assert maybe_excerpt(TABLES, "Leaf", data, None, ["number"]) is None
    assert maybe_excerpt(TABLES, "Leaf", data, None, ["text", "text.0"]) is None


def test_a_remembered_message_is_recognised():
    schema = Schema(LAYOUTS)
    data = schema.encode(Leaf(number=5, text="abc"))
    assert schema.maybe_recognise(Leaf, data) is None
    schema.remember(Leaf, data, "known", ["number"])
    assert schema.maybe_recognise(Leaf, data) == ("known", 5)
    assert schema.maybe_recognise(Leaf, schema.encode(Leaf(number=6, text="abc"))) == ("known", 6)
    assert schema.maybe_recognise(Leaf, schema.encode(Leaf(number=6, text="abd"))) is None
    assert schema.maybe_recognise(Node, data) is None
    assert schema.decode(Leaf, data) == Leaf(number=5, text="abc")


def test_a_text_that_is_not_utf8_is_not_recognised():
    schema = Schema(LAYOUTS)
    data = schema.encode(Leaf(text="abcd"))
    schema.remember(Leaf, data, "known", ["text"])
    assert schema.maybe_recognise(Leaf, data.replace(b"abcd", b"efgh")) == ("known", "efgh")
    assert schema.maybe_recognise(Leaf, data.replace(b"abcd", b"ab\xff\xfe")) is None


def test_contents_that_serve_as_layout_are_no_template():
    vtable = struct.pack("<HHHH", 8, 12, 0, 4)  # where the number of the table is, too
    data = struct.pack("<Ii", 4, -4) + vtable
    assert SCHEMA.decode(Leaf, data) == Leaf(number=struct.unpack("<q", vtable)[0])
    assert maybe_template(TABLES, "Leaf", data) is None


def test_long_headers_and_many_layouts_are_not_remembered():
    schema = Schema(LAYOUTS, templates_max=3)
    long = Leaf(text="x" * limits.TEMPLATE_BYTES_MAX)
    assert schema.decode(Leaf, schema.encode(long)) == long
    assert not schema._templates
    for length in range(0, 400, 4):
        value = Leaf(text="x" * length)
        assert schema.decode(Leaf, schema.encode(value)) == value
        assert len(schema._templates) <= 3


def test_threads_that_meet_ever_new_layouts_do_not_disturb_each_other():
    schema = Schema(LAYOUTS, templates_max=3)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def read(numbers):
        for number in numbers:
            value = Leaf(text="x" * number)
            assert schema.decode(Leaf, schema.encode(value)) == value

    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(read, range(at, 1600, 4)) for at in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
