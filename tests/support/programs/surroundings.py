"""The process of a session in some surroundings of Spark: `surroundings JSON`.

It writes a batch to the stream `origin`, reads it, copies it to `copy` in a micro-batch, and does
that again as after a crash. It prints what it read, and what is known of its Python workers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.spark import Sbp, forget_commit, spark_session

ROWS = 2_000
VALUE_CHARS = 1_000
"""So a micro-batch has tasks: Spark's driver reads smaller ones by itself."""
JOBS = 3
"""More jobs of one task than there are places for tasks: a worker that is kept has two of them."""


def main(order) -> None:
    folder = Path(order["folder"])
    with spark_session(folder, master=order["master"], conf=order["conf"]) as spark:
        sbp = Sbp(spark, order["endpoint"])
        values = f"rpad(string(id), {VALUE_CHARS}, '.') as value"
        sbp.save(spark.range(0, ROWS, 1, 2).selectExpr(values), stream=order["origin"])
        read = read_values(sbp, order["origin"])
        frame = sbp.load_stream(order["origin"]).select("value")
        sbp.copy(frame, order["copy"], folder / "checkpoint")
        forget_commit(folder / "checkpoint")
        sbp.copy(frame, order["copy"], folder / "checkpoint")
        copied = read_values(sbp, order["copy"])
        workers = [worker_of_a_task(spark) for _ in range(JOBS)]
    found = {
        "program": workers[0]["program"],
        "are kept": len({each["process"] for each in workers}) < JOBS,
        "by Unix sockets": workers[0]["by Unix sockets"],
    }
    print(json.dumps({"read": read, "copied": copied, "workers": found}))


def read_values(sbp, stream) -> list[str]:
    """Return the values of a stream. Spark does not sort them: each task may start a Python."""
    rows = sbp.load(stream).select("value").collect()
    return [bytes(row.value).rstrip(b".").decode() for row in rows]


def worker_of_a_task(spark):
    """Return what the Python worker of a task knows of itself."""

    def describe(_):
        return {
            "program": sys.modules["__main__"].__spec__.name,
            "process": os.getpid(),
            "by Unix sockets": os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED") == "True",
        }

    (found,) = spark.sparkContext.parallelize([0], 1).map(describe).collect()
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
