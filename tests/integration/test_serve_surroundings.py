"""`sbp serve` among what its machine does to it: other users' files, broken streams."""

import json
import os
import re
import signal
import stat
import subprocess
import sys

from sbp_core.client import Client
from tests.support.warm import WarmProcess

SERVE = [sys.executable, "-m", "sbp_core.cli.main", "serve"]
PORTS = ["--pd-port", "0", "--range-server-port", "0"]
TIMEOUT_SECONDS = 60


def serve(folder, *words: str, prefix=(), **streams) -> subprocess.Popen[bytes] | WarmProcess:
    popen = subprocess.Popen if prefix else WarmProcess
    return popen(
        [*prefix, *SERVE, "--data-dir", str(folder / "data"), *PORTS, *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def stopped(process: subprocess.Popen[bytes] | WarmProcess) -> str:
    """The log of a server up to its stop by SIGTERM."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0
    return errors.decode()


def refused(process: subprocess.Popen[bytes] | WarmProcess) -> str:
    """The one line of a server that does not start."""
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output, errors.count(b"\n")) == (2, b"", 1), errors
    return errors.decode()


def test_a_server_lives_without_standard_streams(tmp_path):
    ready = tmp_path / "ready.json"
    words = [*SERVE, "--data-dir", str(tmp_path / "data"), *PORTS, "--ready-file", str(ready)]
    command = f"exec {' '.join(words)} <&- >&- 2>&-"
    with subprocess.Popen(["bash", "-c", command]) as process:
        while not ready.exists():
            assert process.poll() is None
        with Client(json.loads(ready.read_text())["pd"]) as client:
            assert client.ping() > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_the_ready_file_takes_the_place_of_a_link_and_not_of_what_it_leads_to(tmp_path):
    target, ready = tmp_path / "precious", tmp_path / "ready.json"
    target.write_text("precious")
    ready.symlink_to(target)
    with serve(tmp_path, "--ready-file", str(ready)) as process:
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        assert not ready.is_symlink()
        assert list(json.loads(ready.read_text())) == ["pd", "range_servers"]
        stopped(process)
    assert target.read_text() == "precious"
    assert not ready.exists()


def test_a_link_that_was_put_where_the_ready_file_is_prepared_is_not_followed(tmp_path):
    """The name was `.ready.json.PID`, which can be guessed."""
    target = tmp_path / "precious"
    target.write_text("precious")
    program = (
        "import os, sys\n"
        f"os.symlink({str(target)!r}, f'{tmp_path}/.ready.json.{{os.getpid()}}')\n"
        "from sbp_core.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["--data-dir", str(tmp_path / "data"), *PORTS]
    ready = ["--ready-file", str(tmp_path / "ready.json")]
    with subprocess.Popen(
        [sys.executable, "-c", program, "serve", *words, *ready],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        stopped(process)
    assert target.read_text() == "precious"


def test_a_ready_file_never_replaces_a_fifo(tmp_path):
    """The superuser could remove /dev/null so."""
    ready = tmp_path / "ready.json"
    os.mkfifo(ready)
    assert "is not a regular file" in refused(serve(tmp_path, "--ready-file", str(ready)))
    assert ready.is_fifo()


def test_an_empty_path_is_not_the_working_directory(tmp_path):
    config = tmp_path / "server.toml"
    config.write_text('[serve]\ndata_dir = ""\n')
    refusal = subprocess.run(
        [*SERVE, "--config", str(config)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "data_dir in [serve]: the path is empty" in refusal.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["server.toml"]


def test_a_data_directory_that_others_may_write_to_is_warned_about(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o770)
    with serve(tmp_path) as process:
        while b"serving" not in process.stdout.readline():
            assert process.poll() is None
        assert re.search(r"WARNING .*folder open to other users .* mode=0770", stopped(process))
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o770
