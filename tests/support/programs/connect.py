"""The process of a Spark Connect session.

`connect ENDPOINT ORIGIN COPY EACH FOLDER` writes a batch to ORIGIN, reads it, copies
it to COPY in micro-batches, and to EACH in foreachBatch, where each micro-batch is written twice.
It prints what it read, and the ids of its session and of those that wrote to EACH.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from sbp_spark.java import use_java
from tests.support.spark import CONF

QUERY_SECONDS = 240


def main(endpoint, origin, copy, each, folder) -> None:
    use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    builder = SparkSession.builder.remote("local[2]")
    for key, value in {**CONF, "spark.sql.warehouse.dir": f"{folder}/warehouse"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        rows = spark.range(100).selectExpr("string(id) as value")
        rows.write.format("sbp").mode("append").options(endpoint=endpoint, stream=origin).save()
        values = [bytes(row.value).decode() for row in read(spark, endpoint, origin).collect()]
        source = spark.readStream.format("sbp").options(endpoint=endpoint, streams=origin)
        stream = source.option("startingOffsets", "earliest").load()
        sink = stream.writeStream.format("sbp").options(endpoint=endpoint, stream=copy)
        is_over = run(sink, f"{folder}/copy")
        sink = stream.writeStream.foreachBatch(twice(endpoint, each))
        is_over = is_over and run(sink, f"{folder}/each")
        written_by = read(spark, endpoint, each).selectExpr("string(key) as id").distinct()
        found = {
            "module": type(spark).__module__,
            "values": values,
            "is_over": is_over,
            "session": spark.session_id,
            "sessions of foreachBatch": [row.id for row in written_by.collect()],
        }
    finally:
        spark.stop()
    print(json.dumps(found))


def read(spark, endpoint, stream):
    reader = spark.read.format("sbp").options(endpoint=endpoint, streams=stream)
    return reader.load().orderBy("offset")


def run(writer, checkpoint) -> bool:
    """Run a query over what is available now; return whether it ended in time."""
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    return query.awaitTermination(QUERY_SECONDS)


def twice(endpoint, stream):
    """A function for foreachBatch, whose second write is a repeat. The keys name its session."""

    def write(frame, batch_id):
        rows = frame.selectExpr(f"'{frame.sparkSession.session_id}' as key", "value")
        writer = rows.write.format("sbp").mode("append").options(endpoint=endpoint, stream=stream)
        for _ in range(2):
            writer.options(txnAppId=f"each-{stream}", txnVersion=batch_id).save()

    return write


if __name__ == "__main__":
    main(*sys.argv[1:])
