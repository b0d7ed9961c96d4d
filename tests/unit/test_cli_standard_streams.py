"""Commands whose standard streams are full or closed: one line, an exit code, never a trace."""

import os
import subprocess
import sys

import pytest

SBP = f"{sys.executable} -m sbp_core.cli.main"
FULL = "sbp: standard output cannot be written: No space left on device\n"
CLOSED = "sbp: standard output cannot be written: Bad file descriptor\n"


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    """A folder that holds an empty log of a range server."""
    folder = tmp_path_factory.mktemp("data") / "log"
    folder.mkdir()
    (folder / "start").write_bytes(b"")
    return str(folder)


def shell(command: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["--help", "streams --help"])
@pytest.mark.parametrize(("to", "told"), [("> /dev/full", FULL), (">&-", CLOSED)])
def test_standard_output_that_cannot_be_written(words, to, told):
    assert shell(f"{SBP} {words} {to}") == (1, "", told)


@pytest.mark.parametrize("to", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize("words", ["streams nonsense", "ping --endpoint nowhere"])
def test_an_error_that_cannot_be_printed(words, to):
    assert shell(f"{SBP} {words} {to}") == (2, "", "")


def test_an_error_wins_over_output_that_cannot_be_written(log):
    exit_code, _, errors = shell(f"{SBP} log check {log} > /dev/full")
    assert exit_code == 1
    assert "Traceback" not in errors


def test_a_command_with_nothing_open():
    assert shell(f"{SBP} ping --endpoint nowhere <&- >&- 2>&-")[0] == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_given_to_what_is_opened_next(tmp_path, closed):
    """The first file that is opened would get descriptor 1, and all that is printed with it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from sbp_core.cli import output\n"
        "output.settle()\n"
        "os._exit(0 if os.open(__file__, os.O_RDONLY) > 2 else 1)\n"
    )
    assert shell(f"{sys.executable} {program} {closed}")[0] == 0


def test_names_that_the_terminal_lacks_are_escaped():
    program = "from sbp_core.cli import output\noutput.settle()\noutput.write_line('\\u20ac')\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("\\u20ac\n", "")
