"""The FlatBuffers codec on honest tables: round trips, defaults, versions, buffers."""

import pytest

from sbp_core import limits
from sbp_core.wire import headers
from sbp_core.wire.flat import Schema
from sbp_core.wire.headers import decode_header, encode_header
from tests.support.tables import LEAF, SCHEMA, Leaf, Node

OLDER = Schema({Leaf: LEAF})


def test_defaults_are_not_written():
    assert SCHEMA.encode(Leaf(number=-1)) == SCHEMA.encode(Leaf())
    assert len(SCHEMA.encode(Leaf())) < len(SCHEMA.encode(Leaf(number=0)))


def test_fields_appended_later_are_ignored_and_missing_ones_take_their_default():
    newer = SCHEMA.encode(Leaf(number=7, text="new"))
    assert OLDER.decode(Leaf, newer) == Leaf(number=7)
    assert SCHEMA.decode(Leaf, OLDER.encode(Leaf(number=7))) == Leaf(number=7)


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda b: memoryview(b"z" + b)[1:]])
def test_any_buffer_is_read(view):
    value = Node(texts=("a",), data=b"xyz")
    assert SCHEMA.decode(Node, view(SCHEMA.encode(value))) == value


def test_a_value_is_a_copy():
    data = bytearray(SCHEMA.encode(Node(data=b"before")))
    value = SCHEMA.decode(Node, data)
    data[:] = bytes(len(data))
    assert value == Node(data=b"before")


def test_a_large_honest_header_is_read():
    request = headers.DescribeStreamsRequest(
        stream_ids=tuple(range(limits.STREAMS_PER_REQUEST_MAX)),
        names=tuple(f"stream-{index:0100d}" for index in range(limits.STREAMS_PER_REQUEST_MAX)),
    )
    assert decode_header(headers.DescribeStreamsRequest, encode_header(request)) == request
