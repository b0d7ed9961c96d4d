"""Spark and a data node of ElasticStream, which takes record sequences only."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from tests.support.dialect import ElasticStreamPeer, stored_batches, stored_records
from tests.support.spark import Sbp, wait_until_over

pytestmark = pytest.mark.dialect

COLUMNS = "key", "value", "headers", "timestamp"
HEADERS = "if(id % 2 = 0, map('Tag', binary('t'), 'n', binary(string(id))), map())"
ROWS = (
    "if(id % 3 = 0, null, binary(concat('k', id)))",
    "binary(concat('v', id))",
    f"cast({HEADERS} as map<string, binary>)",
    "timestamp_millis(1682000000000 + id * 40000000)",
)


@pytest.fixture
def server(peers) -> ElasticStreamPeer:
    return ElasticStreamPeer(peers(), peers(), 7, 8)


@pytest.fixture
def foreign(spark, server) -> Sbp:
    return Sbp(spark, server.endpoint)


@pytest.fixture
def rows(spark):
    return spark.range(300).selectExpr(*ROWS).toDF(*COLUMNS).coalesce(1)


def test_the_java_client_and_spark_read_records_of_spark(foreign, server, rows) -> None:
    foreign.save(rows, stream="7", delivery="at-least-once")
    assert_df_equality(
        foreign.load("7", includeHeaders="true").select(*COLUMNS).orderBy("timestamp"),
        rows.orderBy("timestamp"),
        ignore_nullable=True,
    )
    batches = stored_batches(server.endpoint, 7)
    assert len(batches) > 1, "times are more than 2^31 ms apart"
    found = [record for records in batches for record in records]
    assert [record.offset for record in found] == list(range(300))
    assert (found[0].headers, found[0].properties) == ({"Tag": "t"}, {"n": "0"})
    assert (found[1].headers, found[1].properties) == ({"Keys": "k1"}, {})
    assert [record.body for record in found] == [b"v%d" % at for at in range(300)]
    assert [record.timestamp_ms for record in found] == [
        1_682_000_000_000 + at * 40_000_000 for at in range(300)
    ]


def test_a_query_copies_what_another_client_wrote(foreign, server, checkpoint) -> None:
    server.put(8, b"a", b"", b"c")
    frame = foreign.load_stream("8", includeHeaders="true").select(*COLUMNS)
    writer = frame.writeStream.format("sbp").options(endpoint=foreign.endpoint, stream="7")
    writer = writer.options(checkpointLocation=str(checkpoint), delivery="at-least-once")
    wait_until_over(writer.trigger(availableNow=True).start())
    assert [record.body for record in stored_records(server.endpoint, 7)] == [b"a", b"", b"c"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "elasticstream-2023-04, which has no transactions.*set delivery=at-least-once"),
        (
            {"delivery": "at-least-once", "encoding": "columns"},
            "elasticstream-2023-04, where streams have no schemas.*set encoding=rows",
        ),
    ],
    ids=["exactly once", "columns"],
)
def test_features_that_these_servers_lack_are_refused_by_name(
    spark, foreign, server, checkpoint, options, message
) -> None:
    with pytest.raises(PySparkException, match=message):
        foreign.save(
            spark.range(3).selectExpr("cast(id as string) as value"), stream="7", **options
        )
    frame = foreign.load_stream("8").select("value")
    writer = frame.writeStream.format("sbp").options(endpoint=foreign.endpoint, stream="7")
    writer = writer.options(checkpointLocation=str(checkpoint), **options)
    server.put(8, b"a")
    with pytest.raises(PySparkException, match=message):
        wait_until_over(writer.trigger(availableNow=True).start())
    assert server.next_offset(7) == 0


def test_a_row_that_a_sequence_cannot_hold_ends_the_write_by_name(spark, foreign, server) -> None:
    frame = spark.range(1).selectExpr("cast(null as binary) as value")
    with pytest.raises(PySparkException, match=r"without a value \(null\).*coalesce"):
        foreign.save(frame, stream="7", delivery="at-least-once")
    assert server.next_offset(7) == 0
