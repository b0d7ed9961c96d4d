"""Data directories and checkpoints that release 0.1.0 wrote go on as if nothing had changed.

`older/data-of-0.1.0.tar.gz` has a data directory with two range servers and a query's checkpoint:

* `numbers`: 0 to 149, of which the query has copied 0 to 99 into `copies` in four micro-batches.
* `copies`: written exactly once, then sealed, so it goes on in a second range.
* `typed`: ids 0 to 39, then again with a column `note` (version 2); trimmed to the offset 10.
"""

import tarfile
from pathlib import Path

import pytest
from chispa import assert_df_equality

from sbp_core.client import Client
from sbp_core.cluster import LocalCluster
from tests.support.spark import Sbp

FILES = Path(__file__).with_name("older") / "data-of-0.1.0.tar.gz"


@pytest.fixture
def older(tmp_path, spark):
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with LocalCluster(tmp_path / "data", range_servers=2) as cluster:
        yield Sbp(spark, cluster.endpoint)


def test_a_query_goes_on_from_an_older_checkpoint_exactly_once(older, tmp_path):
    copying = older.load_stream("numbers", group="copying", maxRecordsPerTrigger=30)
    query = (
        copying.select("key", "value")
        .writeStream.format("sbp")
        .options(endpoint=older.endpoint, stream="copies")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(batch.numInputRows for batch in query.recentProgress) == 50
    copies = older.load("copies").selectExpr("cast(cast(value AS string) AS long) AS id")
    expected = older.spark.range(150).select("id")
    assert_df_equality(copies, expected, ignore_row_order=True, ignore_nullable=True)


def test_typed_rows_of_two_schema_versions_come_back(older):
    ids = older.spark.range(10, 40).selectExpr("id", "CAST(NULL AS STRING) AS note")
    expected = ids.union(older.spark.range(40).selectExpr("id", "'late' AS note")).selectExpr(
        "id",
        "cast(id AS double) / 4 AS quarter",
        "if(id % 5 = 0, null, array(id, null)) AS items",
        "timestamp_seconds(id) AS at",
        "note",
    )
    assert_df_equality(older.load("typed"), expected, ignore_row_order=True, ignore_nullable=True)


def test_the_placement_driver_knows_what_it_knew(older):
    with Client(older.endpoint) as client:
        ids = {stream.name: stream.stream_id for stream in client.list_streams()}
        cursors = {each.stream_id: each.next_offset for each in client.describe_cursors("copying")}
        bounds = {each.stream_id: each for each in client.stream_bounds(list(ids.values()))}
        range_count = len(client.list_ranges([ids["copies"]])[ids["copies"]])
    assert sorted(ids) == ["copies", "numbers", "typed"]
    assert cursors == {ids["numbers"]: 100}
    assert (bounds[ids["typed"]].start_offset, bounds[ids["typed"]].next_offset) == (10, 80)
    assert range_count == 2
