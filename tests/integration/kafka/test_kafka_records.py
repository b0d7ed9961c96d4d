"""Records pass the gateway byte for byte, from clients of Kafka to ours and back."""

import pyarrow as pa
import pytest

from sbp_core.client import AppendItem, FetchItem, StreamSpec
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    decode_batch,
    encode_columns,
    encode_rows,
    split_envelopes,
)
from sbp_core.records.stream_decoder import StreamDecoder
from tests.support.kafka import (
    aio_consumer,
    aio_producer,
    librdkafka_consumer,
    poll,
    produce_all,
    run,
)

TIME_MS = 1_700_000_000_123
BYTES = bytes(range(256))
RECORDS = [
    {"key": b"k", "value": b"v", "headers": [("h", b"1"), ("h", b"2")], "timestamp": TIME_MS},
    {"key": None, "value": None, "headers": [], "timestamp": TIME_MS + 5},
    {"key": b"", "value": b"", "headers": [("", b""), ("null", None)], "timestamp": TIME_MS - 5},
    {"key": BYTES, "value": BYTES * 40, "headers": [("häder", BYTES)], "timestamp": TIME_MS},
]

WRITABLE = [each for each in RECORDS if (each["key"], each["value"]) != (None, None)]
"""Without the record that aiokafka's producer refuses."""


def rows_of(client, stream_id):
    """The records of a stream as our own client reads them."""
    (outcome,) = client.fetch([FetchItem(stream_id, 0, None, 1 << 24)])
    assert outcome.error is None
    rows = []
    for envelope in split_envelopes(outcome.payload):
        batch = decode_batch(envelope)
        times = batch.column("timestamp").cast(pa.int64())
        batch = batch.set_column(3, "timestamp", times)
        for each in batch.to_pylist():
            headers = [tuple(pair) for pair in each["headers"] or []]
            time_ms = None if each["timestamp"] is None else each["timestamp"] // 1_000
            rows.append(each | {"headers": headers, "timestamp": time_ms})
    return rows


def read_by_librdkafka(config, topic, count):
    with librdkafka_consumer(config, topic) as consumer:
        return [
            {
                "key": each.key(),
                "value": each.value(),
                "headers": each.headers() or [],
                "timestamp": each.timestamp()[1],
            }
            for each in poll(consumer, count)
        ]


async def read_by_aiokafka(address, topic, count):
    async with aio_consumer(address, topic) as consumer:
        return [
            {
                "key": each.key,
                "value": each.value,
                "headers": list(each.headers),
                "timestamp": each.timestamp,
            }
            for each in [await consumer.getone() for _ in range(count)]
        ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_produces_all_clients_read(gateway, client, topic, stream_id, codec):
    filler = [{"key": b"%d" % number, "value": bytes(2_000)} for number in range(50)]
    config = gateway.config | {"compression.type": codec}
    done = produce_all(config, topic, RECORDS + filler)
    assert [each.offset() for each in done] == list(range(len(RECORDS) + len(filler)))
    assert rows_of(client, stream_id)[: len(RECORDS)] == RECORDS
    assert read_by_librdkafka(gateway.config, topic, len(RECORDS)) == RECORDS
    assert run(lambda: read_by_aiokafka(gateway.address, topic, len(RECORDS))) == RECORDS


@pytest.mark.parametrize(
    ("acks", "codec"), [(0, None), (1, "gzip"), ("all", "lz4"), ("all", "zstd")]
)
def test_what_aiokafka_produces_our_client_reads(gateway, client, topic, stream_id, codec, acks):
    async def body():
        options = {"compression_type": codec, "acks": acks}
        async with aio_producer(gateway.address, **options) as producer:
            for each in WRITABLE:
                names = {"timestamp": "timestamp_ms"}
                sent = {names.get(name, name): value for name, value in each.items()}
                await producer.send(topic, **sent)
        async with aio_consumer(gateway.address, topic) as consumer:
            for _ in WRITABLE:  # with acks=0 the producer leaves before they are stored
                await consumer.getone()

    run(body)
    assert rows_of(client, stream_id) == WRITABLE


def test_what_our_client_appends_all_clients_read(gateway, client, topic, stream_id):
    sent = [each | {"timestamp": each["timestamp"] * 1_000} for each in RECORDS]
    untimed = {"key": b"untimed", "value": b"", "headers": None, "timestamp": None}
    rows = pa.RecordBatch.from_pylist([*sent, untimed], ROWS_SCHEMA)
    batch = encode_rows(rows, stream_id=stream_id, timestamp_ms=TIME_MS, compression="zstd")
    client.append([AppendItem(stream_id, batch)] * 2)
    expected = [*RECORDS, untimed | {"headers": [], "timestamp": TIME_MS}] * 2
    assert read_by_librdkafka(gateway.config, topic, 10) == expected
    assert run(lambda: read_by_aiokafka(gateway.address, topic, 10)) == expected


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


@pytest.fixture
def typed(client, topic):
    """The stream of a topic whose records have columns."""
    (created,) = client.create_streams([StreamSpec(topic)])
    client.evolve_schema(created.stream_id, StreamSchema.of(SCHEMA), may_change=True)
    return created.stream_id


def test_objects_of_json_are_records_of_typed_streams(gateway, client, topic, typed):
    lines = [b'{"id": 1, "price": "2.50", "tags": ["a", "b"]}', b'{"id": 2}']
    produce_all(gateway.config, topic, [{"value": each} for each in lines])
    (outcome,) = client.fetch([FetchItem(typed, 0, None, 1 << 20)])
    decoder = StreamDecoder(typed, 0)
    decoder.learn(each.schema for each in client.describe_schemas([typed])[typed])
    batches = [decoder.decode(each) for each in decoder.wanted(outcome.batches.payload)]
    found = [row for each in batches for row in each.rows.to_pylist()]
    assert [each["id"] for each in found] == [1, 2]
    assert [str(each["price"]) for each in found] == ["2.50", "None"]


def test_typed_streams_are_read_as_objects_of_json(gateway, client, topic, typed):
    rows = pa.RecordBatch.from_pylist([{"id": 7, "price": None, "tags": ["x"]}], SCHEMA)
    batch = encode_columns(rows, StreamSchema.of(SCHEMA), stream_id=typed, timestamp_ms=TIME_MS)
    client.append([AppendItem(typed, batch)])
    (found,) = read_by_librdkafka(gateway.config, topic, 1)
    assert (found["key"], found["value"]) == (None, b'{"id":7,"price":null,"tags":["x"]}')
    assert found["timestamp"] == TIME_MS


@pytest.mark.parametrize(
    "value", [b'{"id": "one"}', b'{"other": 1, "id": 2}', b"{", b"[]", b"\xff", None]
)
def test_a_value_that_does_not_fit_is_refused_with_its_whole_batch(
    gateway, client, topic, typed, value
):
    with pytest.raises(AssertionError, match="failed to validate"):
        produce_all(gateway.config, topic, [{"value": b'{"id": 1}'}, {"value": value}])
    (bounds,) = client.stream_bounds([typed])
    assert bounds.next_offset == 0
