"""Where the conformance suite finds its servers."""

import os

import pytest
from spec_target import Target

ENDPOINT = "SBP_CONFORMANCE_ENDPOINT"
"""host:port of a placement driver; without it the suite starts servers of this project."""


@pytest.fixture(scope="session")
def target(request):
    return Target(os.environ.get(ENDPOINT) or request.getfixturevalue("cluster").endpoint)
