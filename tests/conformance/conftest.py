"""Where the conformance suite finds its servers."""

import os
from pathlib import Path

import pytest
from spec_target import DATA_DIRS, Target

from sbp_core.wire.dialect import Dialect

ENDPOINT = os.environ.get("SBP_CONFORMANCE_ENDPOINT")
"""host:port of a placement driver; without it the suite starts servers of this project."""


@pytest.fixture(scope="session")
def target(request):
    """The servers under test: the servers at ENDPOINT, or our own servers.

    Our own servers speak the specification, unless a test names another dialect.
    """
    if ENDPOINT:
        if data_dir := os.environ.get("SBP_CONFORMANCE_DATA_DIR"):
            DATA_DIRS.append(Path(data_dir))
        return Target.at(ENDPOINT)
    dialect = getattr(request, "param", Dialect.SPECIFICATION)
    is_foreign = dialect is not Dialect.SPECIFICATION
    running = request.getfixturevalue("foreign_cluster" if is_foreign else "cluster")
    DATA_DIRS.append(Path(running.data_dir))
    found = Target.at(running.endpoint)
    assert found.dialect is dialect
    return found
