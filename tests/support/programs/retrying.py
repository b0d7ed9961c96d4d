"""A query whose tasks fail at their first try: `retrying JSON`.

It copies one stream to another, with all rows of a partition before the failure, in a Spark that
tries tasks again. The file `failures` has a line for each task that failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark import TaskContext

from tests.support.spark import Sbp, spark_session, wait_until_over

QUERY_SECONDS = 240


def main(endpoint: str, source: str, target: str, folder: str) -> None:
    """Run the query to its end."""

    def fail_once(batches):
        yield from batches
        task = TaskContext.get()
        if task.attemptNumber() == 0:
            with (Path(folder) / "failures").open("a") as failures:
                failures.write(f"{task.partitionId()}\n")
            raise RuntimeError("the first try fails")

    with spark_session(Path(folder), master="local[2,4]") as spark:
        sbp = Sbp(spark, endpoint)
        rows = sbp.load_stream(source, minPartitions=3).select("value")
        frame = rows.mapInArrow(fail_once, "value binary")
        query = sbp.start_copy(frame, target, Path(folder) / "checkpoint")
        wait_until_over(query, QUERY_SECONDS)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
