"""The command as a process of its own: what signals do before it has imported anything."""

import subprocess
import sys

import pytest

PROBE = """
import signal, sys, types

core = types.ModuleType("sbp_core.cli.main")
core.main = lambda *given, **more: print(
    signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, [])
)
sys.modules[core.__name__] = core  # in place of what takes its time to import
from sbp_spark.command import script
script()
"""


@pytest.mark.parametrize(
    ("words", "is_blocked"),
    [
        (["serve", "--data-dir", "d"], True),
        (["pd"], True),
        (["range-server"], True),
        (["consume", "serve"], False),
        ([], False),
    ],
)
def test_a_hang_up_waits_for_a_server_and_ends_other_commands(words, is_blocked):
    run = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{is_blocked}\n"
