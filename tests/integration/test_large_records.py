"""Records larger than the default at servers that allow them, and at servers that no longer do."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from zlib import crc32

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.cli.main import main
from sbp_core.client import (
    AppendItem,
    Client,
    FetchItem,
    StreamSpec,
    Transaction,
    Writer,
    txn_id_of,
)
from sbp_core.errors import ConfigurationError, StatusCode
from sbp_core.records import (
    ROWS_SCHEMA,
    ColumnsBuilder,
    RowsBuilder,
    StreamSchema,
    decode_columns,
    record_sizes,
    split_envelopes,
)
from sbp_core.wire.headers import FetchInfo, FetchRequest, FetchResponse, FetchResult, decode_header
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import TIMESTAMP_MS, rows_batch, values_of
from tests.support.data.batches import sequence_batch
from tests.support.warm import WarmCluster, sbp
from tests.support.wire import RawClient

LARGEST = limits.RECORD_BYTES_LARGEST
PRODUCER = "large-records"
TWELVE = 12 * limits.MIB
SCHEMA = StreamSchema.of(pa.schema({"id": pa.int64(), "body": pa.binary()}))


def options(record_bytes_max: int) -> tuple[str, ...]:
    return ("--record-bytes-max", str(record_bytes_max))


def new_streams(client: Client, count: int) -> list[int]:
    specs = [StreamSpec(f"s{secrets.token_hex(8)}") for _ in range(count)]
    return [info.stream_id for info in client.create_streams(specs)]


def commit(client: Client, transaction: Transaction) -> None:
    parts = transaction.parts()
    count = sum(part.record_count for part in parts)
    client.commit_txn(PRODUCER, 1, parts, record_count=count, digest=b"12345678")


def rows_of(value: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"value": value}], schema=ROWS_SCHEMA)


def value_of(record_bytes: int) -> bytes:
    """A value that makes a record of plain rows as large as that."""
    return os.urandom(record_bytes - int(record_sizes(rows_of(b""))[0]))


def largest_row(record_bytes: int) -> pa.RecordBatch:
    def row(size: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"id": 7, "body": bytes(size)}], schema=SCHEMA.arrow)

    return row(record_bytes - int(record_sizes(row(0))[0]))


def built(builder: RowsBuilder | ColumnsBuilder, rows: pa.RecordBatch) -> bytes:
    (batch,) = builder.add(rows, timestamp_ms=TIMESTAMP_MS) + builder.flush()
    return batch


def fetched(client: Client, stream_id: int, max_bytes: int = 1) -> list[memoryview]:
    """The payloads of a stream to its end, a batch at a time."""
    payloads, offset = [], 0
    while True:
        (outcome,) = client.fetch([FetchItem(stream_id, offset, None, max_bytes)])
        if outcome.error is not None:
            raise outcome.error
        if outcome.next_offset == offset:
            return payloads
        payloads.append(outcome.payload)
        offset = outcome.next_offset


def mark(value: bytes) -> tuple[int, int]:
    """Return the length and CRC of a value: pytest takes minutes to show a diff of large values."""
    return len(value), crc32(value)


def marks(payloads: list[memoryview]) -> list[list[tuple[int, tuple[int, int]]]]:
    """Return the offset and mark of each value, by payload."""
    return [[(at, mark(value)) for at, value in values_of(each)] for each in payloads]


def check_all(client: Client, streams: list[int], value: bytes, row: pa.RecordBatch) -> None:
    plain, typed, sequences, staged = streams
    for stream_id in (plain, sequences):
        assert marks(fetched(client, stream_id)) == [[(0, mark(value))]]
    (payload,) = fetched(client, typed)
    (envelope,) = split_envelopes(payload)
    is_same = decode_columns(envelope, SCHEMA).equals(row)
    assert is_same
    assert marks(fetched(client, staged)) == [[(0, mark(b"small"))], [(1, mark(value))]]


@pytest.fixture(scope="module")
def large():
    """A value and a row that make the largest records that there can be."""
    return value_of(LARGEST), largest_row(LARGEST)


def test_the_largest_records_outlive_the_server_and_its_setting(tmp_path, large):
    value, row = large
    with WarmCluster(tmp_path, options=options(LARGEST)) as cluster:
        with Client(cluster.endpoint) as client:
            streams = plain, typed, sequences, staged = new_streams(client, 4)
            client.evolve_schema(typed, SCHEMA, may_change=False)
            assert client.record_bytes_max(streams) == dict.fromkeys(streams, LARGEST)
            batch = built(RowsBuilder(plain, record_bytes_max=LARGEST), rows_of(value))
            client.append([AppendItem(plain, batch)], writer=Writer())
            columns = ColumnsBuilder(typed, SCHEMA, record_bytes_max=LARGEST, compression="zstd")
            client.append([AppendItem(typed, built(columns, row))])
            client.append([AppendItem(sequences, sequence_batch([value]))])
            transaction = Transaction(txn_id_of(PRODUCER, 1, secrets.token_hex(8)))
            items = [AppendItem(staged, each) for each in (rows_batch([b"small"]), batch)]
            client.append(items, transaction=transaction)
            commit(client, transaction)
            check_all(client, streams, value, row)
        cluster.kill()
        cluster.start()
        with Client(cluster.endpoint) as client:
            check_all(client, streams, value, row)
    assert main(["log", "check", str(tmp_path)]) == 0
    with WarmCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        check_all(client, streams, value, row)
        assert client.record_bytes_max([plain]) == {plain: limits.RECORD_BYTES_MAX}
        with pytest.raises(ConfigurationError, match="for records of up to 8388608: write"):
            client.append([AppendItem(plain, batch)])
        client.append([AppendItem(plain, rows_batch([b"goes on"]))])
        assert marks(fetched(client, plain))[1:] == [[(1, mark(b"goes on"))]]


@pytest.fixture(scope="module")
def twelve():
    """A cluster that allows records of 12 MiB."""
    with WarmCluster(options=options(TWELVE)) as cluster:
        yield cluster


def test_batches_staged_before_a_seal_are_copied(twelve):
    value = value_of(TWELVE)
    with Client(twelve.endpoint) as client:
        (stream_id,) = new_streams(client, 1)
        transaction = Transaction(txn_id_of(PRODUCER, 1, secrets.token_hex(8)))
        client.append([AppendItem(stream_id, rows_batch([value]))], transaction=transaction)
        client.seal_streams([stream_id])
        client.append([AppendItem(stream_id, rows_batch([b"later"]))], transaction=transaction)
        commit(client, transaction)
        found = marks(fetched(client, stream_id))
        assert found == [[(0, mark(value))], [(1, mark(b"later"))]]


def test_many_large_batches_in_one_append(twelve):
    values = [bytes([n]) * (11 << 20) for n in range(6)]
    with Client(twelve.endpoint) as client:
        streams = new_streams(client, 2)
        items = [AppendItem(streams[n % 2], rows_batch([value])) for n, value in enumerate(values)]
        client.append(items, writer=Writer())
        for index, stream_id in enumerate(streams):
            found = marks(fetched(client, stream_id))
            assert found == [[(at, mark(each))] for at, each in enumerate(values[index::2])]


def test_a_client_that_reads_no_large_records_is_told_so(twelve):
    """One that offers nothing: an older one, or another project's."""
    with Client(twelve.endpoint) as client:
        (stream_id,) = new_streams(client, 1)
        client.append([AppendItem(stream_id, rows_batch([b"small"]))])
        client.append([AppendItem(stream_id, rows_batch([bytes(11 << 20)]))])

    async def ask(offset: int) -> FetchResult:
        async with RawClient.at(twelve.range_servers[0]) as old:
            info = FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=20 << 20)
            request = FetchRequest(fetch_requests=(info,))
            (frame,) = await old.call(Opcode.FETCH, request)
            (result,) = decode_header(FetchResponse, frame.header).fetch_responses
            return result

    before, refused = asyncio.run(ask(0)), asyncio.run(ask(1))
    assert (before.batch_count, before.next_offset) == (1, 1)
    assert refused.status.code == StatusCode.UNSUPPORTED_OPERATION
    assert refused.status.message.endswith("upgrade the client")


def test_a_line_as_large_as_a_record(twelve):
    with Client(twelve.endpoint) as client:
        (stream_id,) = new_streams(client, 1)
        for size, code in ((11 << 20, 0), (TWELVE + 1, 1)):
            words = ("produce", "--endpoint", twelve.endpoint, str(stream_id))
            process = sbp(*words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            _, errors = process.communicate(b"x" * size + b"\n", 60)
            assert process.returncode == code, errors
        assert f"at most {TWELVE} are allowed".encode() in errors
        assert [len(values_of(each)[0][1]) for each in fetched(client, stream_id)] == [11 << 20]
