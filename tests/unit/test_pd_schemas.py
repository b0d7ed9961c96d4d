"""Schemas in the metadata store, and what becomes of versions that are asked for."""

import re

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.errors import StatusCode, StatusError
from sbp_core.pd.model import NewStream, SchemaRecord
from sbp_core.pd.streams.schema_handlers import SchemaCursor, describe_schemas, register_schemas
from sbp_core.records import StreamSchema
from sbp_core.wire.headers import (
    DescribeSchemasResponse,
    RegisterSchemasResponse,
    SchemaEntry,
    decode_header,
    encode_header,
)
from tests.support.data.batches import shared_parts_message
from tests.support.placement_driver import codes

NO_STREAM = 2**40


def schema_of(**columns):
    return StreamSchema.of(pa.schema(list(columns.items())))


FIRST = schema_of(a=pa.int32())
SECOND = schema_of(a=pa.int64(), b=pa.string())
THIRD = schema_of(a=pa.int64(), b=pa.string(), c=pa.string())
OTHER = schema_of(a=pa.string())


@pytest.fixture
def store(home):
    return home.open()


@pytest.fixture
def stream_id(store):
    return create(store, "typed")


def create(store, name):
    ((stream, _),) = store.create_streams([NewStream(name, 1, 1, 0, (1,))], 5)
    return stream.stream_id


def asked(stream_id, version, given, **changes):
    fields = {"fingerprint": given.fingerprint, "schema": given.encode(), **changes}
    return SchemaEntry(stream_id, version, **fields)


def record(stream_id, version, schema, time_ms=1):
    return SchemaRecord(stream_id, version, schema.fingerprint, schema.encode(), time_ms)


def register(store, *entries, time_ms=1, **limits):
    return register_schemas(store, entries, time_ms, **limits)


def frames(store, *stream_ids, newest_only=False, **limits):
    """Everything that is described, frame by frame."""
    place = SchemaCursor()
    while place is not None:
        some, place = describe_schemas(store, stream_ids, place, newest_only=newest_only, **limits)
        yield some


def history(store, *stream_ids, **options):
    """Everything that is described, and in how many frames."""
    entries, count = [], 0
    for some in frames(store, *stream_ids, **options):
        assert decode_header(
            DescribeSchemasResponse, encode_header(DescribeSchemasResponse(schemas=tuple(some)))
        ).schemas == tuple(some)
        entries += some
        count += 1
    return entries, count


def versions(store, *stream_ids, **options):
    return [(each.stream_id, each.version) for each in history(store, *stream_ids, **options)[0]]


def test_the_store_takes_all_or_none(store, stream_id):
    store.schemas.register([record(stream_id, 1, FIRST)])
    for broken in (record(stream_id, 1, SECOND), record(NO_STREAM, 1, SECOND)):
        with pytest.raises(StatusError, match="constraint"):
            store.schemas.register([record(stream_id, 2, SECOND), broken])
        assert store.schemas.maybe_newest(stream_id).version == 1
    assert store.database.failure is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": b""}, "no schema message"),
        ({"schema": b"\0" * 64}, "schema"),
        ({"schema": bytes(limits.SCHEMA_BYTES_MAX + 1)}, "bytes; at most"),
        (
            {"schema": shared_parts_message(8, 3, byte_count=200_000)},
            "schema",
        ),
        ({"schema": bytes(pa.schema({"a": "int32"}, {"k": "v"}).serialize())}, "metadata"),
        ({"schema": bytes(pa.schema({"a": "uint8"}).serialize())}, "column a has type uint8"),
        ({"fingerprint": None}, "not the fingerprint"),
        ({"fingerprint": "0" * 32}, "not the fingerprint"),
        ({"fingerprint": "x" * 60_000}, "not the fingerprint"),
    ],
)
def test_an_invalid_schema_is_refused_with_a_reason(store, stream_id, changes, message):
    (answer,) = register(store, asked(stream_id, 1, SECOND, **changes))
    assert (answer.status.code, answer.version) == (StatusCode.INVALID_REQUEST, 0)
    assert re.search(message, answer.status.message)
    assert versions(store, stream_id) == [(stream_id, 0)]


def test_the_versions_of_a_stream_have_a_limit(store, stream_id):
    answers = register(
        store,
        asked(stream_id, 1, FIRST),
        asked(stream_id, 2, SECOND),
        asked(stream_id, 3, THIRD),
        versions_max=2,
    )
    assert codes(answers) == [0, 0, StatusCode.INVALID_REQUEST]
    assert "2 versions" in answers[2].status.message
    assert codes(register(store, asked(stream_id, 3, SECOND), versions_max=2)) == [0]


def test_a_reason_is_never_too_long_to_be_told(store, stream_id):
    names = [f"{'ü' * 500}{at:03}" for at in range(200)]
    register(store, asked(stream_id, 1, schema_of(**dict.fromkeys(names, pa.int8()))))
    narrow = schema_of(**dict.fromkeys(names, pa.string()))
    answers = register(store, *[asked(stream_id, 2, narrow)] * limits.SCHEMAS_PER_TURN)
    header = RegisterSchemasResponse(schemas=tuple(answers))
    assert decode_header(RegisterSchemasResponse, encode_header(header)) == header
    assert all(each.status.message.endswith(" ...") for each in answers)


@pytest.mark.parametrize("per_frame", [1, 2, 3, 4, 5, 100])
def test_frames_are_cut_anywhere_and_lose_nothing(store, stream_id, per_frame):
    bare, other = create(store, "bare"), create(store, "other")
    for each in (stream_id, other):
        register(store, asked(each, 1, FIRST), asked(each, 2, SECOND), asked(each, 3, THIRD))
    asked_for = (stream_id, bare, NO_STREAM, other)
    whole, _ = history(store, *asked_for)
    assert len(whole) == 8
    cut, count = history(store, *asked_for, results_max=per_frame)
    assert cut == whole
    assert count >= 8 // per_frame
    newest, _ = history(store, *asked_for, newest_only=True, results_max=per_frame)
    assert [each.version for each in newest] == [3, 0, -1, 3]


@pytest.mark.parametrize("newest_only", [True, False])
def test_the_schemas_of_a_frame_have_a_limit_in_bytes(store, newest_only):
    large = bytes(limits.SCHEMA_BYTES_MAX)
    stream_ids = [create(store, f"s{each}") for each in range(10)]
    store.schemas.register(
        [
            SchemaRecord(each, version, f"{version:032}", large, 1)
            for each in stream_ids
            for version in (1, 2)
        ]
    )
    told = list(frames(store, *stream_ids, newest_only=newest_only))
    bytes_max = limits.RESULTS_PER_FRAME * limits.SCHEMA_RESULT_BYTES + limits.SCHEMA_BYTES_MAX
    sizes = [sum(len(each.schema) for each in some) for some in told]
    assert max(sizes) <= bytes_max < limits.HEADER_BYTES_MAX
    assert [each.version for some in told for each in some] == (
        [2] * 10 if newest_only else [1, 2] * 10
    )
