"""Every fuzz target for a moment, in a process of its own: native code may kill it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fuzz

RUN = Path(__file__).with_name("run.py")
RUNS = 2000
TARGETS = (
    "frames",
    "headers",
    "envelope",
    "rows",
    "columns",
    "schema",
    "session",
    "features",
    "tls",
    "kafka",
    "log",
    "entries",
)

FAULTY = """
import os, run, fuzz_targets

def check(data):
    if data not in corpus and len(data) > 20:
        {fault}

run.MEMORY_GROWTH_BYTES_MAX = 96 << 20
corpus = fuzz_targets.frame_corpus()
fuzz_targets.TARGETS["frames"] = fuzz_targets.Target(lambda: corpus, check)
run.main()
"""


def fuzz(folder, *arguments, script=(str(RUN),)):
    return subprocess.run(
        [sys.executable, *script, *arguments, "--crashes", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(RUN.parents[2]), str(RUN.parent)))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_inputs_are_refused_or_right(target, tmp_path):
    finished = fuzz(tmp_path, target, "--runs", str(RUNS), "--seed", "1")
    assert finished.returncode == 0, finished.stdout + finished.stderr[-3000:]
    assert f"{target}: {RUNS} inputs, seed 1" in finished.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ValueError(data)", "ValueError"),
        ("while True: pass", "HangError"),
        ("kept = bytearray(b'x') * (128 << 20)", "MemoryError"),
        ("os.abort()", ""),
    ],
)
def test_an_input_that_fails_is_kept_and_fails_again(fault, said, tmp_path):
    script = ("-c", FAULTY.format(fault=fault))
    finished = fuzz(tmp_path, "frames", "--seed", "1", script=script)
    assert finished.returncode != 0
    assert said in finished.stderr
    (kept,) = tmp_path.iterdir()
    assert kept.name == "crash-frames-1"
    replayed = fuzz(tmp_path, "frames", "--replay", str(kept), script=script)
    assert replayed.returncode != 0
    assert said in replayed.stderr
