"""The process of a session in some surroundings of Spark: `python surroundings_main.py JSON`.

It writes a batch to the stream `origin`, reads it, copies it to `copy` in a micro-batch, and does
that again as after a crash. It prints what it read, and the program of its Python workers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from spark_session import spark_session
from spark_streams import Sbp, forget_commit

ROWS = 2_000
VALUE_CHARS = 1_000
"""So a micro-batch has tasks: Spark's driver reads smaller ones by itself."""


def main(order) -> None:
    folder = Path(order["folder"])
    with spark_session(folder, master=order["master"], conf=order["conf"]) as spark:
        sbp = Sbp(spark, order["endpoint"])
        values = f"rpad(string(id), {VALUE_CHARS}, '.') as value"
        sbp.save(spark.range(0, ROWS, 1, 2).selectExpr(values), stream=order["origin"])
        read = [value.rstrip(b".").decode() for value in sbp.values(order["origin"])]
        frame = sbp.load_stream(order["origin"]).select("value")
        sbp.copy(frame, order["copy"], folder / "checkpoint")
        forget_commit(folder / "checkpoint")
        sbp.copy(frame, order["copy"], folder / "checkpoint")
        copied = [value.rstrip(b".").decode() for value in sbp.values(order["copy"])]
        task = spark.sparkContext.parallelize([0], 1)
        (program,) = task.map(lambda _: sys.modules["__main__"].__spec__.name).collect()
    print(json.dumps({"read": read, "copied": copied, "program": program}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
