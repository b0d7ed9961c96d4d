"""DataFrames of any columns, written to typed streams."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from typed_records import typed_rows, versions_of


def save(sbp, frame, stream, **options):
    sbp.save(frame, stream=stream, encoding="columns", **options)


def test_columns_of_any_type_arrive_as_they_were(sbp, new_streams, client):
    (stream,) = new_streams(1)
    frame = sbp.spark.sql(
        "select id, cast(id as byte) as tiny, id / 4 as half, cast(id as decimal(20, 3)) as amount,"
        " concat('n', id) as name, cast(concat('b', id) as binary) as octets,"
        " id % 2 = 0 as is_even,"
        " date'2026-01-01' + cast(id as int) as day, timestamp_micros(id) as at,"
        " timestamp_ntz'2026-01-01 00:00:00' as wall, array(id, null) as some,"
        " map('k', id) as by_name, named_struct('x', id, 'y', 'z') as pair,"
        " interval '1' day * id as span, if(id = 3, null, id) as gap, named_struct('o', 1) as"
        " _metadata from range(100)"
    )
    sbp.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        save(sbp, frame.repartition(3), stream)
    finally:
        sbp.spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = typed_rows(client, stream).sort_by("id")
    assert table.num_rows == 100
    assert table.slice(3, 1).to_pylist()[0] == {
        "id": 3,
        "tiny": 3,
        "half": 0.75,
        "amount": Decimal("3.000"),
        "name": "n3",
        "octets": b"b3",
        "is_even": False,
        "day": date(2026, 1, 4),
        "at": datetime(1970, 1, 1, 0, 0, 0, 3, tzinfo=UTC),
        "wall": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        "some": [3, None],
        "by_name": [("k", 3)],
        "pair": {"x": 3, "y": "z"},
        "span": timedelta(days=3),
        "gap": None,
    }
    assert table.schema.field("tiny").type == pa.int8()
    assert not table.schema.field("id").nullable
    assert [each.version for each in versions_of(client, stream)] == [1]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_later_writes_fit_by_name(sbp, new_streams, client, delivery):
    (stream,) = new_streams(1)
    frame = sbp.spark.range(10).selectExpr("id", "cast(null as string) as text", "1.5 as rate")
    save(sbp, frame, stream, delivery=delivery)
    narrow = sbp.spark.range(10, 20).selectExpr("cast(1.5 as decimal(2, 1)) as rate", "id")
    save(sbp, narrow, stream, delivery=delivery)
    table = typed_rows(client, stream).sort_by("id")
    assert table.column("id").to_pylist() == list(range(20))
    assert set(table.column("rate").to_pylist()) == {Decimal("1.5")}
    assert table.column("text").null_count == 20


def test_a_change_is_refused_with_what_differs_and_made_if_wanted(sbp, new_streams, client):
    (stream,) = new_streams(1)
    save(sbp, sbp.spark.range(3).selectExpr("id", "cast(id as int) as n"), stream)
    grown = sbp.spark.range(3, 6).selectExpr("id", "id as n", "'x' as word")
    with pytest.raises(Exception, match="set mergeSchema=true") as caught:
        save(sbp, grown, stream)
    told = str(caught.value)
    assert "~ column n widens from int32 to int64" in told
    assert "+ column word string is new" in told
    save(sbp, grown, stream, mergeSchema="true")
    save(sbp, sbp.spark.range(6, 9).selectExpr("id", "cast(id as int) as n"), stream)
    table = typed_rows(client, stream).sort_by("id")
    assert table.column("n").to_pylist() == list(range(9))
    assert table.column("word").to_pylist() == [None] * 3 + ["x"] * 3 + [None] * 3
    wrong = sbp.spark.range(3).selectExpr("cast(id as string) as id", "id as N")
    with pytest.raises(Exception, match="differs from n by case only") as caught:
        save(sbp, wrong, stream, mergeSchema="true")
    assert "! column id is string; the stream has int64" in str(caught.value)
