"""Schemas of streams at a real placement driver: versions that grow, races, restarts, hostility."""

from __future__ import annotations

import asyncio
import itertools
import random

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, SchemaVersion, StreamSpec
from sbp_core.errors import NotFoundError, SchemaError
from sbp_core.records import (
    StreamSchema,
    check_evolution,
    decode_columns,
    encode_columns,
    record_sizes,
    split_envelopes,
)
from sbp_core.wire.headers import RegisterSchemasRequest, SchemaEntry
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster
from tests.support.warm import WarmCluster
from tests.support.wire import RawClient


def schema_of(**columns: pa.DataType) -> StreamSchema:
    return StreamSchema.of(pa.schema([pa.field(name, kind) for name, kind in columns.items()]))


def check_chain(versions: tuple[SchemaVersion, ...]) -> None:
    """The versions are numbered from 1, and each is what may come after the one before."""
    assert [each.version for each in versions] == list(range(1, len(versions) + 1))
    for older, newer in itertools.pairwise(versions):
        check_evolution(older.schema, newer.schema)
        assert newer.schema != older.schema


def test_a_schema_grows_and_outlives_the_placement_driver(tmp_path):
    first = schema_of(id=pa.int32(), name=pa.string())
    wider = schema_of(id=pa.int64(), city=pa.string())
    with WarmCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        one, two = (
            each.stream_id for each in client.create_streams([StreamSpec("a"), StreamSpec("b")])
        )
        assert client.describe_schemas([two, one]) == {one: (), two: ()}
        assert client.evolve_schema(one, first, may_change=False).version == 1
        assert client.evolve_schema(one, schema_of(id=pa.int16()), may_change=False).version == 1
        with pytest.raises(SchemaError, match=r"(?s)stream 1 .*id widens .*\+ column city string"):
            client.evolve_schema(one, wider, may_change=False)
        newest = client.evolve_schema(one, wider, may_change=True)
        assert newest.version == 2
        assert newest.schema == schema_of(id=pa.int64(), name=pa.string(), city=pa.string())
        with pytest.raises(SchemaError, match=r"cast it"):
            client.evolve_schema(one, schema_of(id=pa.string()), may_change=True)
        before = client.describe_schemas([one, two])
        assert before[two] == ()
        check_chain(before[one])
    with WarmCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        assert client.describe_schemas([one, two]) == before
        assert client.describe_schemas([one, two], newest_only=True) == {one: (newest,), two: ()}
        client.delete_streams([one])
        with pytest.raises(NotFoundError, match=f"stream {one}"):
            client.describe_schemas([one, two])
        with pytest.raises(NotFoundError, match=f"stream {one}"):
            client.evolve_schema(one, first, may_change=True)
        (again,) = client.create_streams([StreamSpec("a")])
        assert client.describe_schemas([again.stream_id]) == {again.stream_id: ()}


def test_the_most_columns_and_the_largest_record_of_them_go_all_the_way(tmp_path):
    schema = schema_of(**{f"c{index}": pa.string() for index in range(limits.SCHEMA_FIELDS_MAX)})
    columns = [pa.array(["x"])] * limits.SCHEMA_FIELDS_MAX
    rows = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    room = limits.RECORD_BYTES_MAX - int(record_sizes(rows)[0])
    rows = rows.set_column(0, schema.arrow.field(0), pa.array(["x" * (1 + room)]))
    with WarmCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        (stream,) = (each.stream_id for each in client.create_streams([StreamSpec("a")]))
        client.evolve_schema(stream, schema, may_change=False)
        batch = encode_columns(rows, schema, stream_id=stream, timestamp_ms=0)
        client.append([AppendItem(stream, batch)])
        (described,) = client.describe_schemas([stream])[stream]
        assert described.schema == schema
        (outcome,) = client.fetch([FetchItem(stream, 0, None, limits.BATCH_BYTES_MAX)])
        (envelope,) = split_envelopes(outcome.payload)
        assert decode_columns(envelope, described.schema) == rows


def test_whatever_bytes_are_called_a_schema_the_placement_driver_goes_on(tmp_path):
    chance = random.Random(20)
    rich = schema_of(
        a=pa.int32(), b=pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.int8()))])), c=pa.string()
    )
    whole = rich.encode()

    def spoiled() -> bytes:
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at : at + 4] = chance.choice([0, 1, 2**31 - 1, 2**32 - 1]).to_bytes(
                        4, "little"
                    )
                case 2:
                    del data[at:]
                    data += b"\0"
                case _:
                    data[at:at] = chance.randbytes(8)
        return bytes(data)

    async def main():
        async with core_cluster(tmp_path) as cluster, RawClient.at(cluster.pd.endpoint) as raw:
            (stream,) = await cluster.client.create_streams([StreamSpec("a")])
            for _ in range(60):
                items = tuple(
                    SchemaEntry(
                        stream.stream_id, 1, chance.choice([rich.fingerprint, "", None]), spoiled()
                    )
                    for _ in range(20)
                )
                answers = await raw.ask(Opcode.REGISTER_SCHEMAS, RegisterSchemasRequest(0, items))
                assert sum(len(answer.schemas) for answer in answers) == len(items)
            (versions,) = (await cluster.client.describe_schemas([stream.stream_id])).values()
            for each in versions:
                assert each.schema == rich, "only bytes that still mean the same are taken"
            made = await cluster.client.evolve_schema(
                stream.stream_id, schema_of(a=pa.int32()), may_change=True
            )
            assert made.version == 1

    asyncio.run(main())
