"""The client commands on a real terminal, at the end of a pipe, and interrupted."""

import os
import pty
import re
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from tests.support.warm import WarmCluster, WarmProcess

SBP = [sys.executable, "-m", "sbp_spark.command"]
SHELL_SBP = " ".join(SBP)
TIMEOUT_SECONDS = 60
VALUES = b"\x1b[2Jred\n\xc2\x9b31m\n\xe2\x80\xaeexe.txt\n\xff\ttab\rback\n"


@pytest.fixture
def stream(cluster, new_streams) -> str:
    """A stream with values that are bad for terminals."""
    (name,) = new_streams(1)
    piped("produce", name, "--endpoint", cluster.endpoint, given=VALUES)
    return name


def piped(*words: str, given: bytes = b"") -> bytes:
    """Run a command between pipes; return what it prints."""
    process = WarmProcess([*SBP, *words], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    output, errors = process.communicate(given, TIMEOUT_SECONDS)
    assert (process.returncode, errors) == (0, b"")
    return output


def on_a_terminal(words: list[str], typed: bytes = b"") -> bytes:
    """The output of a command on a terminal, which makes \\r\\n of each \\n and echoes `typed`."""
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    try:
        with WarmProcess([*SBP, *words], stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            written = b""
            try:
                while data := os.read(ours, 65_536):
                    written += data
            except OSError:  # the end of a terminal
                pass
            assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        os.close(ours)
    return written.replace(b"\r\n", b"\n")


def test_values_do_nothing_to_a_terminal(cluster, stream):
    written = on_a_terminal(["consume", stream, "--endpoint", cluster.endpoint])
    assert written.decode() == "\\x1b[2Jred\n\\x9b31m\n\\u202eexe.txt\n\\xff\ttab\\rback\n"


@pytest.mark.parametrize(
    ("words", "remark"),
    [("consume {} -o {}/records.csv", "4 records"), ("backup create {1}", "of 1 stream")],
)
def test_a_terminal_shows_how_many_bytes_are_read(tmp_path, monkeypatch, words, remark):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with WarmCluster(tmp_path / "data") as own:
        piped("produce", "s", "--create", "--endpoint", own.endpoint, given=b"a\nb\nc\nd\n")
        (place := tmp_path / "place").mkdir()
        words = words.format("s", place).split()
        shown = on_a_terminal([*words, "--endpoint", own.endpoint]).decode()
        assert re.search(rf"[1-9]\d*/[1-9]\d* bytes .*{remark}", shown), shown


@pytest.mark.parametrize("words", ["delete {}", "trim {} 2"])
def test_a_terminal_is_asked_before_records_are_lost(cluster, stream, words):
    command = ["streams", *words.format(stream).split(), "--endpoint", cluster.endpoint]
    kept = on_a_terminal(command, b"n\n").decode()
    assert "Go on? [y/N]" in kept
    assert kept.endswith(("nothing is deleted\n", "nothing is removed\n"))
    done = on_a_terminal(command, b"y\n").decode()
    assert "would " in done
    assert f"deleted {stream}" in done or f"trimmed {stream}" in done


def test_values_go_through_a_pipe_as_they_are(cluster, stream):
    assert piped("consume", stream, "--endpoint", cluster.endpoint) == VALUES


@pytest.mark.parametrize("words", [[], ["--from", "1"]])
def test_json_is_safe_on_a_terminal_and_the_same_in_a_pipe(cluster, stream, words):
    words = ["consume", stream, "--json", *words, "--endpoint", cluster.endpoint]
    written = on_a_terminal(words)
    assert not {b"\x1b", b"\xc2\x9b", b"\xe2\x80\xae"} & {
        written[at : at + n] for at in range(len(written)) for n in (1, 2, 3)
    }
    assert piped(*words) == written


def test_an_interrupt_ends_a_command_without_a_trace(cluster, stream):
    command = [*SBP, "consume", stream, "--follow", "--endpoint", cluster.endpoint]
    with WarmProcess(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout.readline()  # it has begun
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
        assert b"KeyboardInterrupt" not in process.stderr.read()


def test_standard_input_that_is_closed(cluster, stream):
    done = subprocess.run(
        f"{SHELL_SBP} produce {stream} --endpoint {cluster.endpoint} <&-",
        shell=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sbp: standard input cannot be read: Bad file descriptor")


@pytest.mark.parametrize("words", ["consume {}", "consume {} --json", "streams list", "lag"])
def test_output_that_cannot_be_written(cluster, stream, words):
    command = [*SBP, *words.format(stream).split(), "--endpoint", cluster.endpoint]
    with open("/dev/full", "wb") as full:
        process = WarmProcess(command, stdout=full, stderr=PIPE, text=True)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    begin = '{"error": "OutputError", "message": "' if "--json" in words else "sbp: "
    assert errors.startswith(f"{begin}standard output cannot be written: ")
    assert errors.count("\n") == 1


def test_output_that_is_closed(cluster, stream):
    done = subprocess.run(
        f"{SHELL_SBP} consume {stream} --endpoint {cluster.endpoint} >&-",
        shell=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sbp: standard output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_separators_are_bytes(cluster, new_streams):
    (name,) = new_streams(1)
    client = ["--endpoint", cluster.endpoint]
    piped("produce", name, "--key-separator", os.fsdecode(b"\xff"), *client, given=b"k\xffv\n")
    assert piped("consume", name, *client) == b"v\n"
