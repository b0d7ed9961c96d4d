"""`sbp top` against a running server: printed once, as JSON, and on a terminal."""

import json
import os
import pty
import subprocess
import sys

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem
from tests.support.cluster import rows_batch

TIMEOUT_SECONDS = 60


@pytest.fixture
def stream(client, new_streams):
    """A stream with three records, two of which a group has not read."""
    (info,) = client.describe_streams(new_streams(1))
    client.append([AppendItem(info.stream_id, rows_batch([b"a", b"b", b"c"]))])
    client.commit_cursors("top", {info.stream_id: 1})
    return info


def test_it_is_printed_once_where_there_is_no_terminal(cluster, stream, capfd):
    assert main(["top", "--endpoint", cluster.endpoint]) == 0
    summary, servers, server, streams, *rows = capfd.readouterr().out.splitlines()
    assert "records/s" in summary
    assert (servers.split()[0], server.split()[2]) == ("SERVER", "live")
    assert streams.split()[:2] == ["STREAM", "RECORDS"]
    found = {row.split()[0]: row.split() for row in rows}
    assert found[stream.name][1] == "3"
    assert found[stream.name][-2:] == ["2", "top"]


def test_it_is_an_object_for_programs(cluster, stream, capfd):
    assert main(["top", "--json", "--endpoint", cluster.endpoint]) == 0
    found = json.loads(capfd.readouterr().out)
    (row,) = [each for each in found["streams"] if each["stream_id"] == stream.stream_id]
    assert (row["records"], row["lag"], row["group"]) == (3, 2, "top")
    assert row["records_per_second"] == 0
    assert found["servers"][0]["is_live"] is True


def test_q_ends_it_on_a_terminal(cluster, stream):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sbp_core.cli.main", "top", "--endpoint", cluster.endpoint]
    environment = {**os.environ, "COLUMNS": "100", "LINES": "60", "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while stream.name.encode() not in written:
                written += os.read(ours, 65_536)
            os.write(ours, b"q")
            while data := os.read(ours, 65_536):
                written += data
        except OSError:  # the end of a terminal
            pass
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(ours)
    assert b"\x1b[?1049l" in written, "the screen is as it was"


def test_a_cluster_that_does_not_answer_is_an_error(capfd):
    assert main(["top", "--endpoint", "127.0.0.1:1"]) == 1
    assert capfd.readouterr().err.count("\n") == 1
