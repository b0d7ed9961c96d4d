"""The process of a Spark Connect session: `python connect_main.py ENDPOINT ORIGIN COPY FOLDER`.

It writes a batch to ORIGIN, reads it, copies it to COPY in micro-batches, and prints what it read.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession
from spark_session import CONF

from sbp_spark.java import use_java

QUERY_SECONDS = 240


def main(endpoint, origin, copy, folder) -> None:
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
        options = {"endpoint": endpoint, "streams": origin}
        read = spark.read.format("sbp").options(**options).load().orderBy("offset")
        values = [bytes(row.value).decode() for row in read.collect()]
        stream = spark.readStream.format("sbp").options(**options, startingOffsets="earliest")
        writer = stream.load().writeStream.format("sbp").options(endpoint=endpoint, stream=copy)
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        is_over = query.awaitTermination(QUERY_SECONDS)
        session = type(spark).__module__
    finally:
        spark.stop()
    print(json.dumps({"session": session, "values": values, "is_over": is_over}))


if __name__ == "__main__":
    main(*sys.argv[1:])
