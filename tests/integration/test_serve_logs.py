"""The log of real servers, and SIGHUP: it reloads what it can, and never ends a server."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from test_serve_surroundings import TIMEOUT_SECONDS, serve, stopped

from sbp_core.client import Client, StreamSpec
from tests.support.clock import until


@pytest.mark.parametrize("prefix", [[], ["nohup"]], ids=["plain", "nohup"])
def test_a_hang_up_is_logged_and_ends_nothing(tmp_path, prefix):
    words = ["--log-level", "info"]
    with serve(tmp_path, *words, prefix=prefix, stdin=subprocess.DEVNULL) as process:
        endpoint = process.stdout.readline().split()[-1].decode()
        logged = b""
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            while b"SIGHUP" not in (line := process.stderr.readline()):
                assert line
            logged += line
        with Client(endpoint) as client:
            assert client.ping() > 0
        assert "SIGHUP" not in stopped(process)
    assert logged.count(b"reloaded at SIGHUP: nothing to read again") == 2


def test_hang_ups_end_no_server_that_starts_or_stops(tmp_path):
    log = tmp_path / "log"
    words = ["--log-file", str(log), "--log-level", "info", "--range-servers", "2"]
    with serve(tmp_path, *words) as process:
        until(lambda: log.exists() and "server starts" in log.read_text(), TIMEOUT_SECONDS)
        while log.read_text().count("server serves") < 3:
            process.send_signal(signal.SIGHUP)
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
        assert process.returncode == 0
        assert process.stderr.read() == b""
    assert log.read_text().count("server stopped") == 3


def test_a_hang_up_reloads_the_settings_of_the_log_in_all_processes(tmp_path):
    log, moved, config = tmp_path / "log", tmp_path / "log.1", tmp_path / "config.toml"

    def configure(level: str, form: str, segment_bytes: int) -> None:
        config.write_text(
            f'[serve]\nlog_level = "{level}"\nrange_servers = 2\n'
            f"[range_server]\nsegment_bytes = {segment_bytes}\n"
            f'[log]\nformat = "{form}"\nfile = "{log}"\n'
        )

    configure("warning", "text", 1 << 26)
    with serve(tmp_path, "--config", str(config)) as process:
        endpoint = process.stdout.readline().split()[-1].decode()
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        log.rename(moved)
        configure("info", "json", 1 << 27)
        process.send_signal(signal.SIGHUP)
        until(
            lambda: log.exists() and log.read_text().count("reloaded at SIGHUP") == 3,
            TIMEOUT_SECONDS,
        )
        with Client(endpoint) as client:
            client.create_streams([StreamSpec("a")])
        config.write_text("[serve]\nlog_level = 3\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: "configuration refused" in log.read_text(), TIMEOUT_SECONDS)
        assert stopped(process) == ""
    assert moved.read_text() == ""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    reloads = [each for each in events if each["event"] == "reloaded at SIGHUP"][:3]
    assert {re.sub("/.*/", "", each["server"]) for each in reloads} == {
        "serve data",
        "range-server range-server-0",
        "range-server range-server-1",
    }
    for each in reloads:
        assert each["detail"] == "log_level is info, log_format is json, log file opened again"
        assert each["level"] == "info"
    (late,) = [each for each in events if each["event"] == "setting needs a restart"]
    assert late["server"].startswith("serve ")
    assert (late["level"], late["key"]) == ("warning", "segment_bytes in [range_server]")
    (operation,) = [each for each in events if each["event"] == "management operation"]
    assert (operation["operation"], operation["name"]) == ("CREATE_STREAMS", "a")
    assert [each["event"] for each in events].count("server stopped") == 3


def test_the_log_tells_what_happened(tmp_path):
    """A torn end of the log is in it, and the life of the server."""
    with serve(tmp_path) as process:
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        process.kill()
    (segment,) = (tmp_path / "data" / "range-server-0" / "log").glob("*.log")
    with segment.open("ab") as file:
        file.write(b"torn")
    with serve(tmp_path, "--log-level", "info", "--log-format", "json") as process:
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        events = [json.loads(line) for line in stopped(process).splitlines()]
    names = [each["event"] for each in events]
    expected = ["server starts", "log opened", "log recovered", "server serves", "server stops"]
    assert [name for name in names if name in expected] == expected
    assert names[-1] == "server stopped"
    recovered = events[names.index("log recovered")]
    assert recovered["level"] == "warning"
    assert "cut 4 bytes" in recovered["detail"]


def test_an_error_that_ends_a_server_is_in_its_log_file(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "data" / "placement-driver").mkdir(parents=True)
    (tmp_path / "data" / "placement-driver" / "metadata.sqlite").write_bytes(b"no database" * 100)
    with serve(tmp_path, "--log-file", str(log)) as process:
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 2
    (line,) = [each for each in log.read_text().splitlines() if " server ended: " in each]
    assert line.partition("server ended: ")[2] in errors.decode()


def test_a_stop_while_range_servers_start_is_no_error(tmp_path):
    with serve(tmp_path, "--range-servers", "2") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: len(children.read_text().split()) == 2, TIMEOUT_SECONDS)
        assert stopped(process) == ""
    assert [*(tmp_path / "data").glob(".starting-*")] == []
