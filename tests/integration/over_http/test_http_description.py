"""Requests that schemathesis makes of the OpenAPI document which `sbp http` serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fuzz

COMMAND = Path(sys.executable).with_name("st")
SETTINGS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 100
"""Requests of each operation that are made at random; some wait for half a minute."""


def test_answers_are_as_the_description_says(served, tmp_path):
    url = f"http://{served.address}/v1/openapi.json"
    done = subprocess.run(
        [COMMAND, "--config-file", SETTINGS, "run", url, "--max-examples", str(EXAMPLES)],
        cwd=tmp_path,  # it keeps what it learned there
        env={**os.environ, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
