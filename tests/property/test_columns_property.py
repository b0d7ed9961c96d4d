"""Typed batches survive every way into record batches, out of them, and onto other schemas."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import (
    ColumnsBuilder,
    StreamSchema,
    accept_batch,
    check_evolution,
    decode_columns,
    decode_envelope,
    decode_stream_schema,
    encode_columns,
    map_columns,
    merge_schemas,
    record_sizes,
    union_schemas,
)
from tests.support.clock import examples
from tests.support.data.typed import SCHEMAS, batches, column_values, grown, rows_of

EXAMPLES = settings(deadline=None, max_examples=examples(50))
COMPRESSIONS = st.sampled_from(["none", "lz4", "zstd"])


def encoded(batch, schema, compression="none"):
    return encode_columns(batch, schema, stream_id=1, timestamp_ms=5, compression=compression)


@EXAMPLES
@given(st.data(), SCHEMAS, COMPRESSIONS)
def test_columns_round_trip(data, schema, compression):
    batch = data.draw(batches(schema))
    envelope = decode_envelope(encoded(batch, schema, compression))
    decoded = decode_columns(envelope, schema)
    assert decoded.schema.equals(schema.arrow, check_metadata=True)
    assert rows_of(decoded) == rows_of(batch)
    names = data.draw(st.sets(st.sampled_from(schema.arrow.names)))
    some = decode_columns(envelope, schema, names)
    assert some.schema.names == [name for name in schema.arrow.names if name in names]
    assert [column_values(each) for each in some.columns] == [
        column_values(decoded.column(name)) for name in some.schema.names
    ]
    assert some.num_rows == batch.num_rows


@EXAMPLES
@given(st.data(), SCHEMAS, COMPRESSIONS)
def test_servers_store_what_is_encoded(data, schema, compression):
    """Also of a slice, whose lists begin anywhere."""
    batch = data.draw(batches(schema))
    start = data.draw(st.integers(0, batch.num_rows - 1))
    for part in (batch, batch.slice(start)):
        assert accept_batch(encoded(part, schema, compression)).record_count == part.num_rows


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_a_slice_is_written_without_its_parent(data, schema):
    """Arrow writes buffers of fixed width to the end of the 64 bytes that they reach into."""
    batch = data.draw(batches(schema))
    alone = pa.RecordBatch.from_arrays(
        [pa.concat_arrays([column]) for column in batch.columns], schema=schema.arrow
    )
    parent = pa.Table.from_batches([batch] * 300).combine_chunks().to_batches()[0]
    part = parent.slice(batch.num_rows * 150, batch.num_rows)
    spare_bytes = 64 * 2 * schema_nodes(schema.arrow)
    assert len(encoded(part, schema)) <= len(encoded(alone, schema)) + spare_bytes
    assert rows_of(decode_columns(decode_envelope(encoded(part, schema)), schema)) == rows_of(batch)


@EXAMPLES
@given(SCHEMAS)
def test_a_schema_is_its_bytes_and_its_fingerprint(schema):
    again = decode_stream_schema(schema.encode())
    assert again == schema
    assert (again.fingerprint, again.encode()) == (schema.fingerprint, schema.encode())
    assert StreamSchema.of(schema.arrow.with_metadata({"a": "b"})) == schema


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_fingerprints_are_equal_if_and_only_if_the_schemas_are(data, schema):
    other = data.draw(grown(schema) | SCHEMAS)
    assert (schema.fingerprint == other.fingerprint) == (schema == other)
    assert (schema.fingerprint == other.fingerprint) == (schema.encode() == other.encode())


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_a_grown_schema_is_an_evolution(data, schema):
    other = data.draw(grown(schema))
    check_evolution(schema, other)
    assert merge_schemas(schema, other) == other
    assert merge_schemas(other, other) == other


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_schemas_of_two_writers_merge_into_one_that_both_can_write(data, schema):
    first, second = data.draw(grown(schema)), data.draw(grown(schema))
    try:
        merged = merge_schemas(first, second)
    except SchemaError:
        return  # both added a column of one name, or decimals that have no common type
    check_evolution(first, merged)
    assert merge_schemas(merged, second) == merged
    assert merge_schemas(merged, first) == merged
    for each in (first, second):
        batch = data.draw(batches(each))
        assert map_columns(batch, merged.arrow).schema.equals(merged.arrow)


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_mapping_through_a_version_is_mapping_past_it(data, first):
    second = data.draw(grown(first))
    third = data.draw(grown(second))
    check_evolution(first, third)
    batch = data.draw(batches(first))
    direct = map_columns(batch, third.arrow)
    direct.validate(full=True)
    assert rows_of(direct) == rows_of(map_columns(map_columns(batch, second.arrow), third.arrow))
    assert rows_of(direct) == [model_row(row, third.arrow) for row in rows_of(batch)]


def model_row(row, fields):
    """The row as one of other columns: by name, those that it lacks are null."""
    return {each.name: model_value(row.get(each.name), each.type) for each in fields}


def model_value(value, kind):
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return model_row(value, kind)
    if pa.types.is_list(kind):
        return [model_value(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, model_value(each, kind.item_type)) for key, each in value]
    return value


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_a_union_has_room_for_the_rows_of_all(data, schema):
    schemas = [schema, *(data.draw(grown(schema)) for _ in range(2))]
    try:
        union = union_schemas(schemas)
    except SchemaError:
        return
    for each in schemas:
        map_columns(data.draw(batches(each)), union.arrow)


@EXAMPLES
@given(st.data(), SCHEMAS, st.integers(1, 600), COMPRESSIONS)
def test_the_builder_keeps_every_row_in_order(data, schema, target_bytes, compression):
    builder = ColumnsBuilder(1, schema, target_bytes=target_bytes, compression=compression)
    expected, full = [], []
    for batch in data.draw(st.lists(batches(schema, min_size=0), max_size=4)):
        expected += rows_of(batch)
        full += builder.add(batch, timestamp_ms=1)
        assert builder.waiting_bytes < target_bytes
    full += builder.flush()
    decoded = [decode_columns(decode_envelope(batch), schema) for batch in full]
    assert [row for batch in decoded for row in rows_of(batch)] == expected
    for batch in decoded:
        assert batch.num_rows == 1 or record_sizes(batch).sum() <= target_bytes * 1.5


@EXAMPLES
@given(st.data(), SCHEMAS)
def test_sizes_of_rows_are_what_arrow_takes(data, schema):
    """A row takes no less than its bytes; its bits that say what is null are rounded up."""
    batch = data.draw(batches(schema, min_size=0))
    sizes = record_sizes(batch)
    assert len(sizes) == batch.num_rows
    parts = [record_sizes(batch.slice(index, 1))[0] for index in range(batch.num_rows)]
    assert list(sizes) == parts
    if batch.num_rows:
        (whole,) = pa.Table.from_batches([batch]).take(pa.array(range(batch.num_rows))).to_batches()
        last_offsets_bytes = 8 * schema_nodes(schema.arrow)
        assert whole.nbytes <= sizes.sum() + last_offsets_bytes


def schema_nodes(fields):
    return sum(1 + schema_nodes(parts_of(each.type)) for each in fields)


def parts_of(kind):
    return [kind.field(index) for index in range(kind.num_fields)]


@EXAMPLES
@given(st.data(), SCHEMAS, COMPRESSIONS)
def test_flipped_bits_are_refused_or_keep_the_count(data, schema, compression):
    batch = data.draw(batches(schema))
    damaged = bytearray(encoded(batch, schema, compression))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        decoded = decode_columns(decode_envelope(damaged), schema)
    except RecordBatchError:
        return
    assert decoded.num_rows == batch.num_rows
