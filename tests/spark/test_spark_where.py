"""The option `where`: the same rows as those that `df.where` leaves."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from sbp_spark.filtering.matching import matching
from sbp_spark.filtering.parser import KEYWORDS, RefusedError, parse_condition
from sbp_spark.filtering.resolving import row_filter
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.source import parse_source_options
from sbp_spark.reading.input_partitions import (
    SbpBatchReader,
    SpanPartition,
    decode_chunks,
    layout_for,
)
from sbp_spark.reading.prefetch import fetch_chunks
from tests.support.data.conditions import random_condition, random_rows
from tests.support.data.typed import append_columns, rows_in, schema_of
from tests.support.spark import append_values, numbered

SEED = 5
CONDITIONS = 150
PLACE = pa.struct({"city": pa.string(), "zip": pa.int32()})


def test_conditions_are_true_for_the_rows_for_which_they_are_in_spark(spark):
    random = Random(SEED)
    rows = random_rows(random, 200)
    texts = [random_condition(random) for _ in range(CONDITIONS)]
    frame = spark.createDataFrame(pa.Table.from_batches([rows]))
    of_spark = frame.selectExpr(*(f"({text}) is true" for text in texts)).toArrow()
    numbered_rows = rows.append_column("row", pa.array(range(rows.num_rows), pa.int32()))
    for text, expected in zip(texts, of_spark.columns, strict=True):
        wanted = row_filter(parse_condition(text), numbered_rows.schema, numbered_rows.schema)
        found = matching(wanted.condition, numbered_rows).column("row").to_pylist()
        assert found == [row for row, is_true in enumerate(expected.to_pylist()) if is_true], text


def test_words_of_sql_are_columns_where_they_are_in_spark(spark):
    parse = spark._jsparkSession.sessionState().sqlParser().parseExpression
    refused = set()
    for (word,) in spark.sql("select lower(keyword) from sql_keywords()").collect():
        for form in ("{} = 1", "{}", "not {} in (1)", "{}.{} is null", "1 < {} and {} like 'a%'"):
            text = form.replace("{}", word)
            try:
                parse_condition(text)
            except RefusedError:
                refused.add(word)
            else:
                expected = parse(form.replace("{}", "zebra")).toString().replace("zebra", word)
                assert parse(text).toString() == expected
    assert refused == KEYWORDS


@pytest.fixture(scope="module")
def versions(new_streams, client):
    """A stream whose second version adds a column and widens another."""
    (stream,) = new_streams(1)
    place = {"city": "Köln", "zip": 50667}
    first = schema_of(Id=pa.int32(), place=PLACE)
    append_columns(client, stream, rows_in(first, [{"Id": n, "place": place} for n in range(3)]))
    second = schema_of(Id=pa.int64(), place=PLACE, price=pa.float64())
    rows = [{"Id": n, "price": n / 2} for n in range(3, 6)]
    append_columns(client, stream, rows_in(second, rows))
    return stream


@pytest.mark.spark_feature("rows chosen by a condition")
@pytest.mark.parametrize(
    "where",
    [
        "price is null or price >= 2",
        "id > 1 and (place.city = 'Köln' or price = 2.5)",
        "_metadata.offset in (1, 4)",
    ],
)
def test_rows_and_few_columns_of_a_typed_stream(sbp, versions, where):
    metadata = {"includeMetadata": str("_metadata" in where).lower()}
    expected = sbp.load(versions, **metadata).where(where).select("place.zip").collect()
    found = sbp.load(versions, where=where, columns="place.zip", **metadata)
    assert found.select("place.zip").collect() == expected != []


def test_columns_of_the_query_keep_their_names_types_and_structs(sbp, versions):
    given = sbp.spark.read.format("sbp").schema("ID bigint, PLACE struct<ZIP int>")
    found = given.options(
        endpoint=sbp.endpoint, streams=versions, where="Id >= 2 and price is null"
    )
    rows = found.load().collect()
    assert [row.asDict(recursive=True) for row in rows] == [{"ID": 2, "PLACE": {"ZIP": 50667}}]


def test_a_query_of_a_plain_stream(sbp, new_streams, client, checkpoint):
    source, target = new_streams(2)
    append_values(client, source, numbered(0, 5))
    where = "offset in (1, 2, 3) and value != X'32'"
    assert sbp.load(source, where=where, columns="value").count() == 2
    query = sbp.copy(sbp.load_stream(source, where=where), target, checkpoint)
    assert sbp.values(target) == [b"1", b"3"]
    append_values(client, source, numbered(0, 5))
    query = sbp.copy(sbp.load_stream(source, where=where), target, checkpoint)
    assert sbp.values(target) == [b"1", b"3"], "later rows are read, and none matches"
    assert query.lastProgress["numInputRows"] == 0


DAYS, ROWS_PER_DAY = 100, 500


@pytest.fixture(scope="module")
def clustered(sbp, new_streams):
    """A stream of columns with statistics, of which each record batch has one day."""
    (stream,) = new_streams(1)
    days = f"cast(id div {ROWS_PER_DAY} as int) as day"
    rows = sbp.spark.range(0, DAYS * ROWS_PER_DAY, 1, 1).selectExpr(days, "rand(1) as price", "id")
    options = {"stream": stream, "encoding": "columns", "statsColumns": "Day,price"}
    sbp.save(rows, batchRecords=ROWS_PER_DAY, **options)
    return stream


def fetched_bytes(sbp, client, stream, **options):
    """How much a task fetches for a query, and how many rows it finds."""
    frame = sbp.load(stream, columns="id", **options)
    given = {"endpoint": sbp.endpoint, "streams": stream, "columns": "id", **options}
    reader = SbpBatchReader(parse_source_options(given, streaming=False), frame.schema)
    (partition,) = reader.partitions()
    assert isinstance(partition, SpanPartition)
    layout = layout_for(partition, logical_arrow_schema(frame.schema), client)
    asked = {"projections_of": layout.projections, "filters_of": layout.filters}
    chunks = list(fetch_chunks(client, partition.spans, **asked))
    found = decode_chunks(chunks, partition.spans, layout)
    return sum(len(each.batches.payload) for each in chunks), sum(rows.num_rows for rows in found)


@pytest.mark.spark_feature("record batches skipped by statistics")
def test_batches_of_other_rows_are_not_sent(sbp, clustered, client, caplog):
    caplog.set_level("INFO", logger="sbp_spark")
    some_bytes, count = fetched_bytes(sbp, client, clustered, where="day = 37 and price >= 0")
    assert count == ROWS_PER_DAY
    (logged,) = (each for each in caplog.messages if each.startswith("batches skipped"))
    assert f"batches={DAYS - 1} records={(DAYS - 1) * ROWS_PER_DAY} " in logged
    whole_bytes, count = fetched_bytes(sbp, client, clustered, where="price >= 0")
    assert count == DAYS * ROWS_PER_DAY
    assert some_bytes < 0.1 * whole_bytes


def test_a_query_skips_batches_and_keeps_offsets(sbp, clustered):
    where = "day in (0, 37) or day > 98"
    found = sbp.load(clustered, where=where, includeMetadata="true")
    assert found.select("id").agg({"id": "sum", "*": "count"}).collect() == (
        sbp.load(clustered).where(where).agg({"id": "sum", "*": "count"}).collect()
    )
    assert found.where("_metadata.offset != id").count() == 0
