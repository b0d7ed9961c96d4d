"""Write the data for `test_spark_older_files.py`, with the packages of the release to come from.

    PYTHONPATH=TREE_OF_THE_RELEASE python write_data.py data-of-0.1.0.tar.xz

The test describes the data. Large values are zeros, so segments of 17 MiB take little of the file.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sbp_core.client import AppendItem, Client, StreamSpec, Transaction
from sbp_core.cluster import LocalCluster
from sbp_core.records import ROWS_SCHEMA, encode_rows

CONFIG = "[range_server]\nsegment_bytes = 17825792\n"
LARGE_BYTES = 1 << 20
STREAMS = ("numbers", "copies", "typed", "large", "deposits")


class Writer:
    """Writes to the cluster of the older release, with Spark and with a client."""

    def __init__(self, folder: Path, spark: SparkSession, client: Client, endpoint: str) -> None:
        self._folder, self._spark, self._client = folder, spark, client
        self._options = {"endpoint": endpoint}
        specs = [*map(StreamSpec, STREAMS), StreamSpec("replicated", replica_count=2)]
        self.ids = {each.name: each.stream_id for each in client.create_streams(specs)}

    def append(self, stream: str, *values: bytes, transaction: Transaction | None = None) -> None:
        """Append one record batch of rows."""
        columns = {"value": pa.array(values, pa.binary())}
        rows = pa.RecordBatch.from_arrays(
            [columns.get(each.name, pa.nulls(len(values), each.type)) for each in ROWS_SCHEMA],
            schema=ROWS_SCHEMA,
        )
        batch = encode_rows(rows, stream_id=self.ids[stream], timestamp_ms=1_700_000_000_000)
        self._client.append([AppendItem(self.ids[stream], batch)], transaction=transaction)

    def seal(self, stream: str) -> None:
        """Let a stream go on in its next range."""
        self._client.seal_streams([self.ids[stream]])

    def read(self, stream: str, **options: str) -> DataFrame:
        """Read a stream in micro-batches of 30 records, with two tasks."""
        limits = {"maxRecordsPerTrigger": "30", "minPartitions": "2"}
        reader = self._spark.readStream.format("sbp").options(**self._options, **options)
        return reader.options(streams=stream, startingOffsets="earliest", **limits).load()

    def copy(self, frame: DataFrame, checkpoint: str, **options: str) -> None:
        """Write what is available to a stream."""
        writer = frame.writeStream.format("sbp").options(**self._options, **options)
        writer = writer.option("checkpointLocation", str(self._folder / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def write_typed(self, first: int, stop: int, *more: str) -> None:
        """Write ids with columns that follow from them."""
        rows = self._spark.range(first, stop, 1, 1).selectExpr(
            "id",
            "cast(id AS double) / 4 AS quarter",
            "if(id % 5 = 0, null, array(id, null)) AS items",
            "timestamp_seconds(id) AS at",
            *more,
        )
        sink = {"stream": "typed", "encoding": "columns", "mergeSchema": "true"}
        rows.write.format("sbp").mode("append").options(**self._options, **sink).save()

    def write_with_the_client(self) -> None:
        """Several segments, ranges, cursors and transactions in each state."""
        for number in range(40):
            self.append("large", (b"%d" % number).ljust(LARGE_BYTES, b"\0"))
        for first in (0, 10):
            self.append("replicated", *(b"%d" % each for each in range(first, first + 10)))
            if not first:
                self.seal("replicated")
        ids = self.ids
        self._client.commit_cursors("billing", {ids["large"]: 17, ids["replicated"]: 12})
        parts = {}
        for number, state in enumerate(("committed", "aborted", "staged")):
            transaction = Transaction(f"bank.{number}.{state}")
            self.append("deposits", state.encode(), b"%d" % number, transaction=transaction)
            parts[state] = transaction.parts()
        committed = parts["committed"]
        self._client.commit_txn("bank", 0, committed, record_count=2, digest=b"12345678")
        self._client.abort_txns(parts["aborted"])

    def write_with_spark(self) -> None:
        """Stop two queries within a micro-batch: after the sink's commit, and before it."""
        for number in range(100):
            self.append("numbers", b"%d" % number)
        numbers = self.read("numbers", group="copying")
        self.copy(numbers.select("key", "value"), "copying", stream="copies")
        commits = self._folder / "copying" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        self.append("numbers", *(b"%d" % number for number in range(100, 150)))
        self.seal("copies")
        self.write_typed(0, 40)
        self.write_typed(0, 40, "'late' AS note")
        self._client.trim_streams({self.ids["typed"]: 10})
        fails = "if(id = 15 AND note IS NOT NULL, raise_error('stopped'), items) AS items"
        typed = self.read("typed").selectExpr("id", "quarter", fails, "at", "note")
        sink = {"stream": "typed-copies", "encoding": "columns", "createStreams": "true"}
        with pytest.raises(PySparkException, match="stopped"):
            self.copy(typed, "typing", **sink)


def write(folder: Path, archive: Path) -> None:
    """Write everything in a folder, and then the archive."""
    config = folder / "server.toml"
    config.write_text(CONFIG)
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    options = ["--config", str(config)]
    with (
        LocalCluster(folder / "data", range_servers=2, options=options) as cluster,
        Client(cluster.endpoint) as client,
    ):
        session = spark.config("spark.driver.host", "127.0.0.1").getOrCreate()
        writer = Writer(folder, session, client, cluster.endpoint)
        writer.write_with_the_client()
        writer.write_with_spark()
        session.stop()
        cluster.stop()
    with tarfile.open(archive, "w:xz", preset=9) as written:
        for name in ("data", "copying", "typing"):
            written.add(folder / name, name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), Path(sys.argv[1]))
