"""The process of a query that copies numbers from stream to streams: `sink JSON`.

See QueryProcess. Even numbers go to the stream `even`, odd ones to `odd`. `partitions` is
the number of tasks they are dealt out to; without it each task has a piece of the source, in order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.support.queries import TOO_SLOW, clear_unborn
from tests.support.spark import spark_session

QUERY_FAILED = 76
"""Exit code of a life whose query failed: a task was killed too often, or a server was down."""


def main(order) -> None:
    folder = Path(order["folder"])
    clear_unborn(folder / "checkpoint")
    with spark_session(folder / "spark", master=order["master"], conf=order.get("conf")) as spark:
        frame = spark.readStream.format("sbp").options(**order["source"]).load().select("value")
        if order["partitions"]:
            frame = frame.repartition(order["partitions"])
        is_even = f.col("value").cast("string").cast("bigint") % 2 == 0
        frame = frame.withColumn("stream", f.when(is_even, "even").otherwise("odd"))
        writer = frame.writeStream.format("sbp").options(**order["sink"])
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        for _ in range(order.get("runs", 1)):
            query = writer.trigger(**order["trigger"]).start()
            (folder / f"starts.{order['life']}").touch()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                print(error, file=sys.stderr)
                is_slow = "Python worker failed to connect back" in str(error)
                sys.exit(TOO_SLOW if is_slow else QUERY_FAILED)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
