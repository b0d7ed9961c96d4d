"""Failpoints: their settings, their actions, and that they do nothing unless armed."""

import os
import subprocess
import sys
from errno import EIO, ENOSPC

import pytest

from sbp_core.failpoints import VARIABLE, ArmedFailpoints, failpoint


def hits(armed, name, count):
    """Which of the hits, counted from 1, raised what."""
    found = {}
    for number in range(1, count + 1):
        try:
            armed.hit(name)
        except OSError as error:
            found[number] = error.errno
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=error", {1: EIO}),
        ("a.b=error(ENOSPC)", {1: ENOSPC}),
        ("a.b=error:3", {3: EIO}),
        ("a.b=error(ENOSPC):2+", {2: ENOSPC, 3: ENOSPC, 4: ENOSPC}),
        ("other=error:1+, a.b=error:4", {4: EIO}),
        ("other=error:1+", {}),
    ],
)
def test_errors_at_the_hits_that_were_asked_for(text, expected, capfd):
    assert hits(ArmedFailpoints(text), "a.b", 4) == expected
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"failpoint a.b: error at hit {number}" for number in expected]


def test_sleep(capfd):
    slept = []
    armed = ArmedFailpoints("a.b=sleep(20):2+", sleep=slept.append)
    assert hits(armed, "a.b", 3) == {}
    assert slept == [0.02, 0.02]
    assert "a.b: sleep at hit 2" in capfd.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b=",
        "a.b=explode",
        "a.b=kill(1)",
        "a.b=error(ENOTHING)",
        "a.b=sleep",
        "a.b=sleep(soon)",
        "a.b=kill:0",
        "a.b=kill:-1",
        "a.b=kill:1+2",
        "a.b=kill,",
        "a-b=kill",
    ],
)
def test_texts_that_are_no_list_of_faults_are_refused(text):
    with pytest.raises(ValueError, match=VARIABLE):
        ArmedFailpoints(text)


def run(text, code):
    environment = {**os.environ, VARIABLE: text}
    return subprocess.run(
        [sys.executable, "-c", f"from sbp_core.failpoints import failpoint\n{code}"],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )


def test_kill_ends_the_process():
    done = run("a.b=kill:2", "failpoint('a.b'); print('alive', flush=True); failpoint('a.b')")
    assert (done.returncode, done.stdout) == (-9, "alive\n")
    assert done.stderr == "failpoint a.b: kill at hit 2\n"


def test_a_process_does_not_start_on_a_list_that_it_does_not_understand():
    done = run("a.b=explode", "")
    assert done.returncode == 1
    assert "'a.b=explode' is not NAME=ACTION" in done.stderr


def test_no_failpoint_is_armed_here():
    assert VARIABLE not in os.environ
    failpoint("a.b")
    assert failpoint.__name__ == "_do_nothing"
