"""Facts that a Spark worker finds out about itself, in the releases of `SEEN_IN`."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql.types import StringType, StructField, StructType

SCHEMA = StructType([StructField("found", StringType())])


def make_look_around():
    """A function that Spark takes to its workers as it is, without this module."""

    def look_around(_):
        import pyarrow as pa

        from sbp_spark.spark_internals import worker_process
        from sbp_spark.spark_internals.task_log import task_ids

        found = {
            "program": worker_process._program(),
            "ends_micro_batches": worker_process.ends_micro_batches(),
            "folder": str(worker_process.maybe_session_folder()),
            "ids": sorted(task_ids()),
        }
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    return look_around


def test_workers_know_what_they_are_and_share_a_folder(spark):
    frame = spark.range(0, 2, 1, 2).mapInArrow(make_look_around(), SCHEMA)
    first, second = (json.loads(row.found) for row in frame.collect())
    assert first == second
    assert first["program"] == "pyspark.daemon"
    assert not first["ends_micro_batches"]
    assert first["ids"] == ["partition_id"]
    assert Path(first["folder"]).is_dir()
