"""The code of the README works when it is pasted."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_twenty_lines_work(spark, cluster, client, tmp_path):
    (code,) = re.findall(r"```python\n(from pyspark.*?)```", README.read_text(), re.DOTALL)
    assert 'endpoint = "127.0.0.1:12378"' in code
    code = code.replace("127.0.0.1:12378", cluster.endpoint)
    code = code.replace('format("console")', 'format("memory").queryName("totals")')
    code = code.replace("numbers-checkpoint", str(tmp_path / "checkpoint"))
    assert len([line for line in code.splitlines() if line]) <= 20
    exec(compile(code, str(README), "exec"), {})
    (numbers,) = client.describe_streams(["numbers"])
    (bounds,) = client.stream_bounds([numbers.stream_id])
    assert (bounds.start_offset, bounds.next_offset) == (0, 100_000)
    assert [tuple(row) for row in spark.table("totals").collect()] == [(100_000, 4_999_950_000)]
