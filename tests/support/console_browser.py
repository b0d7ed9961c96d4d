"""`sbp console` as a process, and a browser that looks at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sbp_core.processes import COMMAND

if TYPE_CHECKING:
    from playwright.sync_api import Browser

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None and "CI" not in os.environ,
    reason="chromium is missing: install it, e.g. `apt-get install chromium`",
)
"""Skips a test on a machine without Chromium. It fails in CI, where it has to be there."""


@contextlib.contextmanager
def serving_console(endpoint: str, *words: str) -> Iterator[str]:
    """Run `sbp console` for the cluster at an endpoint; yield its URL."""
    process = subprocess.Popen(
        [*COMMAND, "console", "--endpoint", endpoint, "--port", "0", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("console "), "it ended; its error is above"
        yield line.split()[-1]
    finally:
        process.terminate()
        assert process.wait(60) == 0


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Run Chromium without a window."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()
