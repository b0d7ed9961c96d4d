"""Every path that hands rows to Spark gives the rows that were written."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.data.every_path import check_every_path
from tests.support.programs import program

EXAMPLES = 250
"""Examples of each of the two tests; EXAMPLES in the environment overrides it."""


@pytest.mark.timeout(0 if os.environ.get("EXAMPLES") else 600)
def test_values_of_every_type_are_the_same_on_every_path(sbp, client, tmp_path):
    assert check_every_path(sbp, client, tmp_path, EXAMPLES) >= EXAMPLES


@pytest.mark.deployments
@pytest.mark.timeout(0 if os.environ.get("EXAMPLES") else 600)
def test_so_they_are_when_java_checks_no_access(cluster, tmp_path):
    command = program("every_path", cluster.endpoint, tmp_path, EXAMPLES)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) >= EXAMPLES
