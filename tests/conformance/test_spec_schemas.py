"""REGISTER_SCHEMAS and DESCRIBE_SCHEMAS, an extension: another server may refuse them all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.errors import StatusCode
from sbp_core.records import StreamSchema
from sbp_core.wire.headers import DescribeSchemasRequest, RegisterSchemasRequest, SchemaEntry
from sbp_core.wire.opcodes import Opcode

NO_STREAM = 2**40


def schema_of(**columns: pa.DataType) -> StreamSchema:
    return StreamSchema.of(pa.schema(list(columns.items())))


ONE = schema_of(a=pa.int32())
TWO = schema_of(a=pa.int64(), b=pa.string())
OTHER = schema_of(b=pa.string())


def asked(stream_id, version, given, **changes) -> SchemaEntry:
    fields = {"fingerprint": given.fingerprint, "schema": given.encode(), **changes}
    return SchemaEntry(stream_id, version, **fields)


async def register(pd, *entries):
    answers = await pd.ask(Opcode.REGISTER_SCHEMAS, RegisterSchemasRequest(10_000, entries))
    found = [entry for answer in answers for entry in answer.schemas]
    assert [each.stream_id for each in found] == [each.stream_id for each in entries]
    return found


async def describe(pd, *stream_ids, newest_only=False):
    request = DescribeSchemasRequest(10_000, stream_ids, newest_only)
    answers = await pd.ask(Opcode.DESCRIBE_SCHEMAS, request)
    return [entry for answer in answers for entry in answer.schemas]


def places(entries):
    return [(each.stream_id, each.version) for each in entries]


@pytest.fixture
def at_pd(target):
    """Runs a test with new streams, at the placement driver."""

    def run(test, count=1):
        async def body(target):
            async with target.streams(count) as placed, target.pd() as pd:
                await test(pd, *(each.stream_id for each in placed))

        target.run(body)

    return run


def test_a_version_goes_on_from_the_one_before(at_pd):
    """Rule: register-schemas, describe-schemas."""

    async def body(pd, one, two, bare):
        answers = await register(pd, asked(two, 1, OTHER), asked(one, 1, ONE), asked(one, 2, TWO))
        assert [each.status.code for each in answers] == [0, 0, 0]
        assert places(answers) == [(two, 1), (one, 1), (one, 2)]
        entries = await describe(pd, bare, one, two)
        assert places(entries) == [(bare, 0), (one, 1), (one, 2), (two, 1)]
        assert [each.status.code for each in entries] == [0] * 4
        for entry, schema in zip(entries[1:], (ONE, TWO, OTHER), strict=True):
            assert entry.fingerprint == schema.fingerprint
            assert pa.ipc.read_schema(pa.py_buffer(entry.schema)).equals(schema.arrow, True)
            assert entry.registered_at_ms > 1_600_000_000_000
        newest = await describe(pd, one, bare, two, newest_only=True)
        assert newest == [entries[2], entries[0], entries[3]]

    at_pd(body, 3)


def test_a_version_is_there_once(at_pd):
    """Rule: register-again."""

    async def body(pd, one):
        (made,) = await register(pd, asked(one, 1, ONE))
        assert await register(pd, asked(one, 1, ONE), asked(one, 2, ONE)) == [made, made]
        assert places(await describe(pd, one)) == [(one, 1)]

    at_pd(body)


def test_an_overtaken_client_gets_the_newest_version(at_pd):
    """Rule: register-conflict."""

    async def body(pd, one, bare):
        (made,) = await register(pd, asked(one, 1, ONE))
        answers = await register(pd, *(asked(one, version, TWO) for version in (-1, 0, 1, 3)))
        assert [each.status.code for each in answers] == [StatusCode.CONFLICT] * 4
        assert {(each.version, each.schema) for each in answers} == {(1, made.schema)}
        (answer,) = await register(pd, asked(bare, 2, ONE))
        assert (answer.status.code, answer.version) == (StatusCode.CONFLICT, 0)
        assert places(await describe(pd, one, bare)) == [(one, 1), (bare, 0)]

    at_pd(body, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        asked(0, 2, TWO, schema=b""),
        asked(0, 2, TWO, schema=TWO.encode()[:-9]),
        asked(0, 2, TWO, schema=bytes(TWO.arrow.with_metadata({"k": "v"}).serialize())),
        asked(0, 2, TWO, schema=bytes(pa.schema({"a": pa.uint64()}).serialize())),
        asked(0, 2, TWO, schema=bytes(300_000)),
        asked(0, 2, TWO, fingerprint=ONE.fingerprint[::-1]),
        asked(0, 2, TWO, fingerprint=None),
        asked(0, 2, OTHER),
        asked(0, 2, schema_of(a=pa.int16())),
        asked(0, 2, schema_of(b=pa.string(), a=pa.int32())),
        asked(0, 2, StreamSchema.of(pa.schema([*ONE.arrow, pa.field("b", "int8", False)]))),
    ],
)
def test_an_invalid_next_version_fails_alone(at_pd, wrong):
    """Rule: register-refused, partial-failure."""

    async def body(pd, one):
        await register(pd, asked(one, 1, ONE))
        broken = SchemaEntry(one, 2, wrong.fingerprint, wrong.schema)
        answers = await register(pd, broken, asked(NO_STREAM, 1, ONE), asked(one, 2, TWO))
        assert [each.status.code for each in answers] == [
            StatusCode.INVALID_REQUEST,
            StatusCode.NOT_FOUND,
            0,
        ]
        assert answers[0].status.message
        assert places(await describe(pd, one)) == [(one, 1), (one, 2)]

    at_pd(body)


def test_a_deleted_stream_has_no_schema(target):
    """Rule: forget-schemas."""

    async def body(target):
        async with target.pd() as pd:
            async with target.streams() as (placed,):
                await register(pd, asked(placed.stream_id, 1, ONE))
            (entry,) = await describe(pd, placed.stream_id)
            assert (entry.status.code, entry.schema) == (StatusCode.NOT_FOUND, b"")
            (entry,) = await register(pd, asked(placed.stream_id, 2, TWO))
            assert entry.status.code == StatusCode.NOT_FOUND

    target.run(body)


def test_long_schemas_come_in_several_frames(at_pd):
    """Rule: describe-schemas, item-answers."""

    async def body(pd, *stream_ids):
        columns = {f"{at:03}{'x' * 900}": pa.int8() for at in range(200)}
        entries = []
        for version in range(1, 4):
            columns[f"new{version}"] = pa.int8()
            entries += [asked(each, version, schema_of(**columns)) for each in stream_ids]
        for each in entries:
            (answer,) = await register(pd, each)
            assert answer.status.code == 0
        found = await describe(pd, *stream_ids, NO_STREAM)
        expected = [(each, version) for each in stream_ids for version in (1, 2, 3)]
        assert places(found[:-1]) == expected
        assert found[-1].status.code == StatusCode.NOT_FOUND

    at_pd(body, 5)
