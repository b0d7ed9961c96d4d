"""Which columns the streams of a sink take, and what becomes of their schemas."""

import pyarrow as pa
import pytest

from sbp_core.client import SchemaVersion
from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import StreamSchema
from sbp_spark.writing.directory import TypedStream, check_still_plain, evolve_streams
from tests.support.scripted_client import WritingClient

NAMES = {1: "s1", 2: "s2"}


def schema(**types):
    """Nullable columns, but for those whose names end with an underscore."""
    fields = [pa.field(name, kind, nullable=name[-1] != "_") for name, kind in types.items()]
    return StreamSchema.of(pa.schema(fields))


INTS = schema(a=pa.int32(), id_=pa.int64())


def evolve(client, given, *, may_change=False):
    evolve_streams(client, NAMES, given, may_change=may_change)
    return [[each.schema for each in client.schemas[stream_id]] for stream_id in NAMES]


def test_the_first_write_gives_a_stream_its_schema():
    client = WritingClient()
    client.register_schema(2, INTS, version=1)
    assert evolve(client, INTS) == [[INTS], [INTS]]
    narrower = schema(id_=pa.int8())
    assert evolve(client, narrower) == [[INTS], [INTS]]


def test_the_second_writer_has_to_fit():
    class Raced(WritingClient):
        def register_schema(self, stream_id, schema, *, version):
            if not self.schemas:
                super().register_schema(stream_id, INTS, version=1)
            return super().register_schema(stream_id, schema, version=version)

    other = schema(a=pa.int64(), id_=pa.int64())
    with pytest.raises(SchemaError, match="mergeSchema=true"):
        evolve(Raced(), other)
    assert evolve(Raced(), INTS) == [[INTS], [INTS]]
    assert evolve(Raced(), other, may_change=True) == [[INTS, other], [other]]


def test_a_change_is_refused_with_what_differs_unless_it_is_wanted():
    client = WritingClient()
    evolve(client, INTS)
    grown = schema(b=pa.string(), a=pa.int64(), id_=pa.int64())
    with pytest.raises(SchemaError) as caught:
        evolve(client, grown)
    assert str(caught.value).splitlines() == [
        "stream 's1' does not accept these columns as they are; its schema, version 1, differs:",
        "  ~ column a widens from int32 to int64",
        "  + column b string is new",
        "To let its schema change in this way, set mergeSchema=true",
    ]
    merged = schema(a=pa.int64(), id_=pa.int64(), b=pa.string())
    assert evolve(client, grown, may_change=True) == [[INTS, merged]] * 2


def test_a_contradiction_to_the_schema_is_refused_in_any_case():
    client = WritingClient()
    evolve(client, INTS)
    wrong = schema(a=pa.string(), c=pa.int8())
    for may_change in (False, True):
        with pytest.raises(SchemaError) as caught:
            evolve(client, wrong, may_change=may_change)
        told = str(caught.value)
        assert "  ! column a is string; the stream has int32: cast it" in told
        assert "  ! column id_ int64 not null is missing; it is required" in told
        assert "  + column c int8 is new" in told
        assert "except for a missing column: with mergeSchema=true" in told
    assert [len(each) for each in client.schemas.values()] == [1, 1]


def test_nothing_changes_if_one_of_the_streams_does_not_take_the_columns():
    client = WritingClient()
    client.register_schema(2, schema(a=pa.string(), id_=pa.int64()), version=1)
    with pytest.raises(SchemaError, match="stream 's2'"):
        evolve(client, INTS, may_change=True)
    assert list(client.schemas) == [2]


def test_nulls_alone_need_no_change_of_the_schema():
    client = WritingClient()
    evolve(client, INTS)
    relaxed = StreamSchema.of(pa.schema([pa.field("a", pa.int32()), pa.field("id_", pa.int64())]))
    assert evolve(client, relaxed) == [[INTS]] * 2
    assert evolve(client, relaxed, may_change=True) == [[INTS, relaxed]] * 2
    wider = schema(id_=pa.int64(), new=pa.int8()).arrow.field("new")
    both = StreamSchema.of(relaxed.arrow.append(wider))
    client = WritingClient()
    evolve(client, INTS)
    with pytest.raises(SchemaError, match=r"\? column id_ may have nulls") as caught:
        evolve(client, both)
    assert "+ column new int8 is new" in str(caught.value)


def test_plain_records_and_columns_do_not_mix():
    client = WritingClient()
    client.published[1] = [{"value": b"a"}]
    with pytest.raises(SchemaError, match="stream 's1' has plain records and no schema"):
        evolve(client, INTS)
    assert client.schemas == {}


def test_servers_without_schemas_take_plain_records_only():
    client = WritingClient(has_schemas=False)
    check_still_plain(client, NAMES)
    with pytest.raises(ConfigurationError, match=r"option encoding: .* knows no schemas"):
        evolve(client, INTS)


def test_tasks_get_the_newest_schemas_and_make_those_that_are_gone():
    client = WritingClient()
    grown = schema(a=pa.int32(), id_=pa.int64(), new=pa.string())
    evolve(client, INTS)
    client.schemas[2].append(SchemaVersion(2, 2, grown, 0))
    client.asked_for_schemas.clear()
    found = evolve_streams(client, NAMES, INTS, may_change=False)
    assert {each: (stream.name, stream.schema) for each, stream in found.items()} == {
        1: ("s1", INTS),
        2: ("s2", grown),
    }
    assert client.asked_for_schemas == [[1, 2]]
    del client.schemas[1]
    made = evolve_streams(client, NAMES, INTS, may_change=False)
    assert made == {**found, 1: TypedStream("s1", INTS)}


def test_a_null_column_stands_for_one_that_is_required():
    client = WritingClient()
    evolve(client, INTS)
    nulls = StreamSchema.of(pa.schema([pa.field("a", pa.int32()), pa.field("id_", pa.int64())]))
    evolve(client, nulls, may_change=True)
    assert evolve(client, schema(a=pa.int32()))[0][-1] == nulls


def test_plain_rows_that_wait_for_their_commit_are_refused_by_a_stream_with_a_schema():
    client = WritingClient()
    check_still_plain(client, [1, 2])
    client.register_schema(2, INTS, version=1)
    check_still_plain(client, [1])
    with pytest.raises(SchemaError, match=r"stream 2 \(by id\) has got a schema"):
        check_still_plain(client, [1, 2])
