"""Filters of batch reads, with Spark's push-down on and off, and why the source does not use them.

Spark keeps one plan for each `load()`, the last one, whatever filters that was made for. So a
source that reads less for them gives wrong rows. The tests of `FilteringSource` show that; when a
release of Spark fails them, filters on streams and offsets can be used.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThan, InputPartition

from sbp_core.client import AppendItem
from sbp_core.records import ROWS_SCHEMA, encode_rows
from tests.support.data.typed import append_columns, rows_in, schema_of
from tests.support.spark import append_values, numbered

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
LONG_MAX = 2**63 - 1

ROW_FILTERS = [
    "offset = 2",
    "offset != 2",
    "not (offset <=> 2)",
    "offset > 1",
    "offset >= 1 and offset < 3 and stream_id is not null",
    "offset <= 1.5",
    f"offset < {LONG_MAX} and offset > -{LONG_MAX}",
    f"offset >= {LONG_MAX}",
    "offset > 3 and offset < 2",
    "offset in (0, 3, null)",
    "offset not in (0, 3)",
    "cast(offset as string) = '4'",
    "key is null",
    "key = X'6B' or offset = 2",
    "timestamp is null or timestamp >= timestamp'1970-01-01'",
    "timestamp = timestamp'2020-01-01 00:00:00.000001'",
    "timestamp < timestamp'1970-01-01'",
    "timestamp > timestamp'2020-01-01 00:00:00' and timestamp < timestamp'9999-12-31 23:59:59'",
    "timestamp >= timestamp'2020-01-01 05:30:00.000001+05:30'",
    "timestamp in (timestamp'1969-12-31 23:59:59.999999', timestamp'2999-01-01')",
    "stream = '{first}'",
    "not (stream = '{first}')",
    "stream like '%{end}' and stream like 'test-%'",
    "stream like '%est%' and stream_id in ({first_id})",
    "stream > '{first}' and range_index = 0",
]
TYPED_FILTERS = [
    "price is null",
    "price <=> 1.5",
    "not (price <=> 1.5)",
    "price > 0 and _metadata.offset >= 1",
    "price = double('NaN')",
    "name like 'a%'",
    "_metadata.stream is not null and name in ('ab', null)",
]


class FilteringSource(DataSource):
    """The numbers from the option `low`, else 0, to 9; pushed filters `id > n` skip some."""

    @classmethod
    def name(cls):
        return "filtering"

    def schema(self):
        return "id bigint"

    def reader(self, schema):
        class Reader(DataSourceReader):
            def __init__(self, low):
                self.low = low

            def pushFilters(self, filters):  # noqa: N802 - Spark's name
                for each in filters:
                    if isinstance(each, GreaterThan):
                        self.low = max(self.low, each.value + 1)
                return filters

            def partitions(self):
                return [InputPartition(self.low)]

            def read(self, partition):
                return ((number,) for number in range(partition.value, 10))

        return Reader(int(self.options.get("low", "0")))


@contextmanager
def pushed_down(spark, *, is_on=True):
    """Let Spark offer filters to Python sources."""
    spark.conf.set(PUSH_DOWN, str(is_on).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.fixture
def filtering(spark):
    """Read the source that uses filters; Spark refuses it unless they are pushed down."""
    register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module
    spark.dataSource.register(FilteringSource)

    def load(**options):
        return spark.read.format("filtering").options(**options).load()

    with pushed_down(spark):
        yield load
    unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def two_streams(new_streams, client):
    """Two streams of five records each, whose own times are in another order than offsets."""
    streams = new_streams(2)
    times = ["2999-01-01", "1969-12-31T23:59:59.999999", "2020-01-01T00:00:00.000001"]
    times += ["2020-01-01", "1970-01-01"]
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [b"k", None, b"k", b"", None],
            "value": numbered(0, 5),
            "headers": [None] * 5,
            "timestamp": [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in times],
        },
        schema=ROWS_SCHEMA,
    )
    infos = client.describe_streams(streams)
    for info in infos:
        batch = encode_rows(rows, stream_id=info.stream_id, timestamp_ms=0)
        client.append([AppendItem(info.stream_id, batch)])
    return infos


def rows_of_all(*frames):
    return sorted(str(row) for frame in frames for row in frame.collect())


def check_filters(spark, frame, filters):
    """Compare what Spark leaves of a DataFrame with what it leaves of the same rows.

    The unfiltered part of each query is read as planned for the filter: all rows must be there.
    """
    kept = spark.createDataFrame(frame.collect(), frame.schema)
    for each in filters:
        both = frame.unionAll(frame.where(each))
        assert rows_of_all(both) == rows_of_all(kept, kept.where(each)), each


def test_filters_of_rows(sbp, two_streams):
    first, second = two_streams
    named = {"first": first.name, "first_id": first.stream_id, "end": second.name[-1]}
    with pushed_down(sbp.spark):
        frame = sbp.load(first.name, second.name)
        check_filters(sbp.spark, frame, [each.format_map(named) for each in ROW_FILTERS])


def test_filters_of_typed_streams(sbp, new_streams, client):
    (stream,) = new_streams(1)
    schema = schema_of(price=pa.float64(), name=pa.string())
    values = [(1.5, "ab"), (None, None), (float("nan"), "b"), (-0.0, "")]
    rows = rows_in(schema, [{"price": price, "name": name} for price, name in values])
    append_columns(client, stream, rows)
    with pushed_down(sbp.spark):
        check_filters(sbp.spark, sbp.load(stream, includeMetadata="true"), TYPED_FILTERS)


def test_filters_beside_options_limits_and_few_columns(sbp, two_streams):
    (info, _) = two_streams
    bounds = {"startingOffsets": f'{{"{info.name}": 1}}', "endingOffsets": f'{{"{info.name}": 4}}'}
    with pushed_down(sbp.spark):
        frame = sbp.load(info.name, **bounds)
        late = frame.where("offset >= 2")
        assert late.limit(1).count() == 1
        assert late.count() == 2
        assert [row.offset for row in late.select("offset").orderBy("offset").collect()] == [2, 3]
        assert frame.where("offset = 0 or offset = 4").count() == 0
        assert frame.where("offset < 3").unionAll(late).count() == 4
        # Options compare times of appends, filters those that writers set.
        recent = sbp.load(info.name, startingTimestamp="-1h").where("timestamp < '1970-01-01'")
        assert [row.offset for row in recent.collect()] == [1]
        given = sbp.spark.read.format("sbp").schema("value binary, offset bigint not null")
        few = given.options(endpoint=sbp.endpoint, streams=info.name).load()
        assert [bytes(row.value) for row in few.where("offset = 3").collect()] == [b"3"]


def test_a_dataframe_ends_where_the_tail_was_until_filters_are_pushed_down(
    sbp, new_streams, client
):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 3))
    frame = sbp.load(stream)
    sbp.spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW filters_view USING sbp"
        f" OPTIONS (endpoint '{sbp.endpoint}', streams '{stream}')"
    )
    assert (frame.count(), sbp.spark.table("filters_view").count()) == (3, 3)
    append_values(client, stream, numbered(3, 5))
    assert frame.where("offset >= 1").count() == 2
    assert sbp.spark.table("filters_view").count() == 3
    with pushed_down(sbp.spark):
        assert frame.where("offset >= 1").count() == 4
    assert frame.count() == 5
    assert sbp.load(stream).count() == 5


def test_faults_of_options_are_reported_when_filters_are_pushed_down(sbp, new_streams):
    (stream,) = new_streams(1)
    frame = sbp.load(stream, startingOffsets=f'{{"{stream}": 9}}').where("offset > 5")
    with (
        pushed_down(sbp.spark),
        pytest.raises(PySparkException, match="option startingOffsets is outside of the stream"),
    ):
        frame.count()


@pytest.mark.spark_feature("filter push-down", works=False)
def test_spark_reads_all_of_a_frame_with_the_filters_of_the_last_query(filtering):
    frame = filtering()
    assert frame.count() == 10
    assert frame.where("id > 6").count() == 3
    assert frame.count() == 3, "Spark plans again: filters can be used, see the head of this module"


def test_spark_refuses_a_source_that_uses_filters_unless_they_are_pushed_down(spark, filtering):
    frame = filtering()
    with pushed_down(spark, is_on=False), pytest.raises(PySparkException, match=PUSH_DOWN):
        frame.count()
