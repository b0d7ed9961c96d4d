"""A reader's first exactly-once query: the README's own text, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from sbp_core.cluster import LocalCluster
from sbp_spark.java import use_java

README = Path(__file__).parents[2] / "README.md"


def test_the_first_exactly_once_query_runs_from_the_readme(tmp_path, record_property):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    use_java()
    began = time.monotonic()
    with LocalCluster(tmp_path / "data") as cluster:
        for old, new in (
            ("127.0.0.1:12378", cluster.endpoint),
            ("/tmp/sbp-demo", str(tmp_path)),
        ):
            assert old in code
            code = code.replace(old, new)
        ran = subprocess.run(
            [sys.executable, "-"],
            input=code,
            cwd=tmp_path,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},  # as its block of set-up says
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    seconds = time.monotonic() - began
    record_property("seconds_to_the_first_query", round(seconds, 1))
    print(f"from `sbp serve` to the result of the first query: {seconds:.1f} s")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["50000"]
