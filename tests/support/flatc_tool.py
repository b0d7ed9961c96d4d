"""Tests that compare with `flatc`, the official compiler of FlatBuffers."""

import os
import shutil

import pytest

needs_flatc = pytest.mark.skipif(
    shutil.which("flatc") is None and "CI" not in os.environ,
    reason="flatc is missing: install it, e.g. `apt-get install flatbuffers-compiler`",
)
"""Skips a test on a machine without flatc. It fails in CI, where flatc has to be there."""
