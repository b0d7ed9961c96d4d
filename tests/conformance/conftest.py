"""Where the conformance suite finds its servers."""

import os
from pathlib import Path

import pytest
from spec_target import DATA_DIRS, Target

from sbp_core.wire.dialect import Dialect

ENDPOINT = os.environ.get("SBP_CONFORMANCE_ENDPOINT")
"""host:port of a placement driver; without it the suite starts servers of this project."""

SPOKEN = ["as it speaks"] if ENDPOINT else [dialect.value for dialect in Dialect]


@pytest.fixture(scope="session", params=SPOKEN)
def target(request):
    """The servers under test: those at ENDPOINT, or our own in each dialect."""
    if ENDPOINT:
        if data_dir := os.environ.get("SBP_CONFORMANCE_DATA_DIR"):
            DATA_DIRS.append(Path(data_dir))
        return Target.at(ENDPOINT)
    is_foreign = request.param != Dialect.SPECIFICATION
    running = request.getfixturevalue("foreign_cluster" if is_foreign else "cluster")
    DATA_DIRS.append(Path(running.data_dir))
    found = Target.at(running.endpoint)
    assert found.dialect == request.param
    return found
