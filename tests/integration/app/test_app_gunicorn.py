"""Producers in workers of gunicorn, which forks them from a process that has loaded the app."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from uuid import uuid4

import httpx

APP = "tests.support.programs.forking_app"
COMMAND = [sys.executable, "-m", "gunicorn", "--config", f"python:{APP}", f"{APP}:app"]
TIMEOUT_SECONDS = 60


def test_workers_use_their_own_producers_and_sigterm_stores_their_records(sbp, cluster):
    stream = f"s-{uuid4()}"
    sbp.create_stream(stream)
    environ = {**os.environ, "APP_ENDPOINT": cluster.endpoint, "APP_STREAM": stream}
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True, env=environ) as server:
        try:
            begin = []
            while sum("worker is ready" in line for line in begin) < 2:
                begin.append(server.stderr.readline())
                assert begin[-1], "".join(begin)
            url = re.search(r"Listening at: (\S+)", "".join(begin))[1]
            assert httpx.get(f"{url}/inherited", trust_env=False).status_code == 500
            assert httpx.get(f"{url}/own", trust_env=False).status_code == 200
        finally:
            server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 0
    told = f"was made in process {server.pid}, and this is a child of it: make one here, after"
    assert errors.count(told) == 1
    values = [each.value for each in sbp.consumer(stream)]
    assert sorted(values) == [b"parent", b"request", b"worker", b"worker"]
