"""An archive of Spark's classes, with which Java starts in half the time.

`python -m tests.support.class_archive` makes the archive in `.cache` if there is none for this Java
and this Spark, and prints the shell commands that let Spark use it. A Java that cannot use the
archive loads its classes one by one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
"""Options that suit a short life; a file that does not fit is no news."""
CLIENTS, SERVERS = "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"
"""Variables with options of Java: of drivers, and of a standalone master and its workers."""


def variables() -> dict[str, str]:
    """Make the archive if there is none. Return the variables with which Spark starts from it."""
    path = _path()
    if not path.exists():
        _make(path)
    return dict.fromkeys((CLIENTS, SERVERS), f"{OPTIONS} -XX:SharedArchiveFile={path}")


def _path() -> Path:
    """Return where the archive is: Java uses it with the very files that it was made from."""
    jars = SPARK_HOME / "jars"
    version = Path(os.environ.get("JAVA_HOME", ""), "release")
    parts = [version.read_bytes() if version.is_file() else b"", bytes(version), bytes(jars)]
    parts.append(b"%d" % jars.stat().st_mtime_ns)
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return ROOT / ".cache" / f"spark-{pyspark.__version__}-{digest[:12]}.jsa"


def _make(path: Path) -> None:
    """Run this file, whose Java leaves its classes in the archive when it ends."""
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        environment = {**os.environ, CLIENTS: f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.class_archive", folder],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode == 0 and made.exists():  # Java crashes on one that is cut off
            made.replace(path)


def _load_classes(folder: Path) -> None:
    """Run some queries; exit as Java does, which writes the archive at its end."""
    from pyspark import SparkContext

    from tests.support.spark import spark_session

    with spark_session(folder) as spark:
        rows = spark.range(100).selectExpr("id", "string(id) as value", "id % 3 as k")
        rows.groupBy("k").count().orderBy("k").collect()
        rows.mapInArrow(lambda batches: batches, rows.schema).write.json(f"{folder}/rows")
        stream = spark.readStream.schema(rows.schema).json(f"{folder}/rows")
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    sys.exit(gateway.proc.wait())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _load_classes(Path(sys.argv[1]))
    for name, value in variables().items():
        print(f"export {name}={shlex.quote(value)}")
