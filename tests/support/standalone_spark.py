"""A Spark master and two workers on this machine, on addresses of their own, so that it speculates.

Spark runs the copy of a slow task on another host only; 127.0.0.1 and 127.0.0.2 are two of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark

from sbp_core.failpoints import VARIABLE
from sbp_spark.java import use_java

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_SECONDS = 120
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.python.task.killTimeout": "120s",
    "spark.executor.memory": "512m",
    "spark.locality.wait": "0s",
}


class StandaloneSpark:
    """A context manager. `failpoints` are armed in the Python workers of the second host only."""

    def __init__(self, folder: Path, *, failpoints: str) -> None:
        self.master = ""
        self._folder = folder
        self._failpoints = failpoints
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneSpark:
        use_java()
        try:
            self._start("Master", "127.0.0.1", ["--port", "0", "--webui-port", "0"])
            self.master = self._wait_for("Master", r"Starting Spark master at (spark://\S+)")
            for number, failpoints in ((1, ""), (2, self._failpoints)):
                words = ["--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                words += ["--work-dir", str(self._folder / f"work-{number}"), self.master]
                self._start("Worker", f"127.0.0.{number}", words, failpoints)
            for number in (1, 2):
                self._wait_for(f"Worker-127.0.0.{number}", "(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def executor_logs(self) -> list[str]:
        """Return the standard error of each executor and its Python workers."""
        paths = sorted(self._folder.glob("work-*/app-*/*/stderr"))
        return [path.read_text(encoding="utf-8", errors="replace") for path in paths]

    def _start(self, kind: str, host: str, words: Sequence[str], failpoints: str = "") -> None:
        name = kind if kind == "Master" else f"{kind}-{host}"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_PUBLIC_DNS": host,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        if failpoints:
            environment[VARIABLE] = failpoints
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        *(str(SPARK_CLASS), f"org.apache.spark.deploy.{kind.lower()}.{kind}"),
                        *("--host", host, *words),
                    ],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_for(self, name: str, line: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        path = self._folder / f"{name}.log"
        while not (found := re.search(line, path.read_text(encoding="utf-8", errors="replace"))):
            assert time.monotonic() < deadline, path.read_text(encoding="utf-8", errors="replace")
            time.sleep(0.1)
        return found[1]
