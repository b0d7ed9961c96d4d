"""Spark beyond one local session: a standalone cluster, pipelines, Python workers and jars."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from urllib.error import URLError
from urllib.request import urlretrieve

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sbp_core.failpoints import VARIABLE
from sbp_spark.java import use_java
from tests.support.spark import CONF

COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module of a process that commits and aborts micro-batches of sinks."""
PLANNER = "pyspark.sql.worker.write_into_data_source"
"""The module of a process that plans writes."""


def python_workers(pid: int, module: str = "") -> list[int]:
    """The workers of a process that has a session, or those that run `module`."""
    daemons = [each for each in _below(pid) if _is_daemon(each, module)]
    return [each for daemon in daemons for each in _below(daemon) if _is_daemon(each, module)]


def end_python_workers(module: str) -> int:
    """Kill those workers of this process that run a module; return how many there were."""
    workers = python_workers(os.getpid(), module)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    return len(workers)


def _below(pid: int) -> list[int]:
    """The descendants of a process."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it is over by now
            parent = path.read_text(encoding="utf-8").rpartition(") ")[2].split()[1]
            children[int(parent)].append(int(path.parent.name))
    found = list(children[pid])
    for each in found:
        found += children[each]
    return found


def _is_daemon(pid: int, module: str) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"pyspark.daemon" in command and module.encode() in command
    return False


AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""The newest that Maven Central had. It runs in Spark 4.3, which has the rest of Avro itself."""
PROTOBUF = "org.apache.spark:spark-protobuf_2.13:4.1.1"
CATALOG_URL = (
    "https://repo1.maven.org/maven2/org/apache/spark/spark-catalyst_2.13/4.2.0"
    "/spark-catalyst_2.13-4.2.0-tests.jar"
)
"""Spark's own tests of 4.2, whose catalogs in memory run in Spark 4.3. Spark itself brings no table
that supports MERGE, and Iceberg and Delta had no release for 4.3."""


def maybe_catalog_jar(folder: Path) -> Path | None:
    """Fetch the jar with a catalog whose tables support MERGE, None where there is none."""
    path = folder / CATALOG_URL.rpartition("/")[2]
    try:
        urlretrieve(CATALOG_URL, path)
    except URLError:
        return None
    return path


def add_jar(spark: SparkSession, coordinates: str) -> None:
    """Give a session a jar of Maven Central, for the rest of the run; skip where there is none."""
    try:
        spark.sql(f"ADD JAR 'ivy://{coordinates}?transitive=false'")
    except Py4JJavaError as error:
        found = re.search(r"\[(unresolved dependency: .*)\]", str(error.java_exception))
        if found is None:
            raise
        pytest.skip(found[1])


SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_SECONDS = 120
STANDALONE_CONF = {
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


CATALOG = "memory"
LATEST = f"{CATALOG}.db.latest"
_SPECIFICATION = Template(
    """\
name: orders
storage: file://$folder/storage
libraries:
  - glob:
      include: transformations/**
"""
)
_ORIGIN = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


def origin():
    reader = spark.readStream.format("sbp").option("endpoint", "$endpoint")
    return reader.option("startingOffsets", "earliest").load("$origin")

"""
_ORDERS = Template(
    _ORIGIN
    + """
@dp.table
def orders():
    return origin()


dp.create_sink("copy", "sbp", {"endpoint": "$endpoint", "stream": "$copy"})


@dp.append_flow(target="copy")
def to_copy():
    return origin().select("value")
"""
)
_LATEST = Template(
    _ORIGIN
    + """
@dp.temporary_view
def changes():
    return origin().selectExpr("cast(string(value) as int) % 3 as id", "offset")


dp.create_streaming_table("$latest")
dp.create_auto_cdc_flow(
    target="$latest", source="changes", keys=["id"], sequence_by="offset", stored_as_scd_type=1
)
"""
)


def write_project(folder: Path, endpoint: str, origin: str, copy: str) -> Path:
    """Write a project: a table `orders` of ORIGIN, a sink from ORIGIN to COPY.

    Return its specification.
    """
    _define(folder, "orders", _ORDERS.substitute(endpoint=endpoint, origin=origin, copy=copy))
    specification = folder / "spark-pipeline.yml"
    specification.write_text(_SPECIFICATION.substitute(folder=folder))
    return specification


def add_auto_cdc(folder: Path, endpoint: str, origin: str) -> None:
    """Add the table LATEST: of the numbers in ORIGIN with each remainder of 3 the last one."""
    _define(folder, "latest", _LATEST.substitute(endpoint=endpoint, origin=origin, latest=LATEST))


def _define(folder: Path, name: str, definitions: str) -> None:
    path = folder / "transformations" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(definitions)


def pipeline_conf(folder: Path) -> dict[str, str]:
    """Spark settings with which the tables of a project outlive the process of a run."""
    return {
        **CONF,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
    }


def merging_conf(jar: Path) -> dict[str, str]:
    """Spark settings for a catalog in memory whose tables support MERGE, as AUTO CDC needs it."""
    return {
        "spark.jars": str(jar),
        f"spark.sql.catalog.{CATALOG}": "org.apache.spark.sql.connector.catalog"
        ".SharedTablesInMemoryRowLevelOperationTableCatalog",
    }
