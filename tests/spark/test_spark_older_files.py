"""`sbp serve` of this release goes on with the data and the checkpoints that release 0.1.0 wrote.

`older/write_data.py` wrote `older/data-of-0.1.0.tar.xz`: a data directory with two range servers,
and the checkpoints of two queries that were stopped within a micro-batch.

* `numbers`: 0 to 149. The query `copying` has copied 0 to 99 into `copies`. It was stopped between
  the sink's commit of its last micro-batch and Spark's.
* `copies`: sealed since then, so it goes on in a second range.
* `typed`: ids 0 to 39, then again with a column `note` (version 2); trimmed to the offset 10.
* `typed-copies`: the query `typing` has copied one micro-batch of `typed`. It failed in the second
  one, when one of two tasks had staged its rows.
* `large`: 0 to 39, each filled up to 1 MiB with zeros, in several segments.
* `replicated`: 0 to 19 in two ranges, each on both range servers.
* `deposits`: three transactions: committed, aborted, and staged without a decision.
* The group `billing` reads the offset 17 of `large` and 12 of `replicated` next.
"""

import tarfile
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql.functions import expr

from sbp_core.cli.main import main
from sbp_core.client import Client, Transaction, TxnPart
from sbp_core.cluster import LocalCluster
from tests.support.spark import Sbp, append_values, batch_sizes, numbered, wait_until_over

FILES = Path(__file__).with_name("older") / "data-of-0.1.0.tar.xz"
LARGE_BYTES = 1 << 20


def extract(folder):
    with tarfile.open(FILES) as archive:
        archive.extractall(folder, filter="data")
    for path in (folder / "data").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files, which the tests change: each test has streams of its own."""
    made = tmp_path_factory.mktemp("older")
    extract(made)
    return made


@pytest.fixture(scope="module")
def older(folder, spark):
    with LocalCluster(folder / "data", range_servers=2) as cluster:
        yield Sbp(spark, cluster.endpoint)


@pytest.fixture
def client(older):
    with Client(older.endpoint) as connected:
        yield connected


def typed_rows(spark):
    """What 0.1.0 wrote to `typed`, without the records that it trimmed."""
    ids = spark.range(10, 40).selectExpr("id", "CAST(NULL AS STRING) AS note")
    return ids.union(spark.range(40).selectExpr("id", "'late' AS note")).selectExpr(
        "id",
        "cast(id AS double) / 4 AS quarter",
        "if(id % 5 = 0, null, array(id, null)) AS items",
        "timestamp_seconds(id) AS at",
        "note",
    )


def assert_same_rows(found, expected):
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


def test_a_query_repeats_a_committed_batch_and_goes_on_exactly_once(older, folder, client):
    """The rows of the repeated micro-batch are recognised: other digests would fail the query."""
    source = older.load_stream("numbers", group="copying", maxRecordsPerTrigger=30, minPartitions=2)
    for stop, sizes in ((150, [10, 30, 20]), (160, [10])):
        query = older.copy(source.select("key", "value"), "copies", folder / "copying")
        assert batch_sizes(query) == sizes
        assert sorted(older.values("copies"), key=int) == numbered(0, stop)
        append_values(client, "numbers", numbered(stop, stop + 10))


def test_a_query_repeats_a_failed_batch_and_goes_on_exactly_once(older, folder):
    """Rows that the failed micro-batch had staged are written once, by its repetition."""
    source = older.load_stream("typed", maxRecordsPerTrigger=30, minPartitions=2)
    query = (
        source.writeStream.format("sbp")
        .options(endpoint=older.endpoint, stream="typed-copies", encoding="columns")
        .option("checkpointLocation", str(folder / "typing"))
        .trigger(availableNow=True)
        .start()
    )
    wait_until_over(query)
    assert batch_sizes(query) == [30, 10]
    assert_same_rows(older.load("typed-copies").where("id < 100"), typed_rows(older.spark))


def test_typed_rows_of_two_schema_versions_come_back_and_more_are_appended(older):
    assert_same_rows(older.load("typed"), typed_rows(older.spark))
    more = typed_rows(older.spark).withColumn("id", expr("id + 100"))
    older.save(more, stream="typed-copies", encoding="columns")
    assert_same_rows(older.load("typed-copies").where("id >= 100"), more)


def test_records_in_several_segments_come_back_and_more_are_appended(older, folder, client):
    segments = [*folder.glob("data/range-server-*/log/*.log")]
    assert len(segments) > 3
    values = [value.ljust(LARGE_BYTES, b"\0") for value in numbered(0, 40)]
    assert older.values("large") == values
    append_values(client, "large", [b"more"])
    assert older.values("large") == [*values, b"more"]


def test_a_replicated_stream_comes_back_and_goes_on(older, client):
    assert older.values("replicated") == numbered(0, 20)
    append_values(client, "replicated", numbered(20, 30))
    assert older.values("replicated") == numbered(0, 30)


def test_only_the_committed_transaction_is_readable_and_its_repeat_adds_nothing(older, client):
    """The staged one is dropped after a day, so on most days that has happened already."""
    (info,) = client.describe_streams(["deposits"])
    committed = TxnPart("bank.0.committed", info.stream_id, 0, 2)
    client.commit_txn("bank", 0, [committed], record_count=2, digest=b"12345678")
    assert older.values("deposits") == [b"committed", b"0"]
    later = Transaction("bank.3.later")
    append_values(client, "deposits", [b"later"], transaction=later)
    client.commit_txn("bank", 3, later.parts(), record_count=1, digest=b"12345678")
    assert older.values("deposits") == [b"committed", b"0", b"later"]


def test_the_placement_driver_knows_what_it_knew(older, client):
    ids = {stream.name: stream.stream_id for stream in client.list_streams()}
    assert sorted(ids) == [
        *("copies", "deposits", "large", "numbers", "replicated", "typed", "typed-copies")
    ]
    cursors = {each.stream_id: each.next_offset for each in client.describe_cursors("billing")}
    assert cursors == {ids["large"]: 17, ids["replicated"]: 12}
    (typed,) = client.stream_bounds([ids["typed"]])
    assert (typed.start_offset, typed.next_offset) == (10, 80)
    ranges = client.list_ranges([*ids.values()])
    counts = {name: len(ranges[stream_id]) for name, stream_id in ids.items()}
    assert counts["copies"] == 2
    assert {len(each.servers) for each in ranges[ids["replicated"]]} == {2}


def test_the_files_are_intact_before_and_after_the_upgrade(tmp_path):
    extract(tmp_path)
    data = str(tmp_path / "data")
    for is_last in (False, True):
        assert main(["pd", "check", data]) == 0
        assert main(["log", "check", data]) == 0
        if not is_last:
            with LocalCluster(data, range_servers=2):
                pass
