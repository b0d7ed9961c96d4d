"""The plugin of pytest that the package brings: the tests of its page, as a user runs them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/test-your-pipeline.md"
PLUGIN = "sbp_spark.testing"


def test_the_tests_of_the_page_pass(tmp_path):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    *files, conftest = blocks
    names = ["pipeline.py", "test_pipeline.py", "test_crash.py", "test_producer.py"]
    for name, text in zip(names, files, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "def spark_with_sbp(spark)" in conftest  # for users with a session of their own
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-v"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_the_start_of_pytest_loads_neither_spark_nor_arrow():
    program = "import pytest, sys; before = set(sys.modules)\n"
    program += f"import {PLUGIN}; print(*set(sys.modules) - before)"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"sbp_spark", PLUGIN}


def test_pytest_finds_the_plugin_by_the_name_of_its_module():
    """With another name, `-p sbp_spark.testing` would register the module twice and fail."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
