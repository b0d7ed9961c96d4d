"""Where the conformance suite finds its servers."""

import os
from pathlib import Path

import pytest
from spec_target import DATA_DIRS, Target

ENDPOINT = os.environ.get("SBP_CONFORMANCE_ENDPOINT")
"""host:port of a placement driver; without it the suite starts servers of this project."""


@pytest.fixture(scope="session")
def target(request):
    """The servers under test: the servers at ENDPOINT, or our own servers."""
    if ENDPOINT:
        if data_dir := os.environ.get("SBP_CONFORMANCE_DATA_DIR"):
            DATA_DIRS.append(Path(data_dir))
        return Target(ENDPOINT)
    running = request.getfixturevalue("cluster")
    DATA_DIRS.append(Path(running.data_dir))
    return Target(running.endpoint)
