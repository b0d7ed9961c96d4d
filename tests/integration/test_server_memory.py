"""Memory that a server process keeps once its threads have freed it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from sbp_core import limits
from sbp_core.client import Client
from sbp_core.cluster import LocalCluster

ARENA_BYTES = 64 * limits.MIB
THREADS_THAT_FREE = """
import re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
if sys.argv[1] == "one":
    from sbp_core.server.allocator import use_one_arena
    use_one_arena()
together = Barrier(8)
def work(_):
    together.wait()  # each thread of the pool gets one
    for size in (8, 6, 6):
        bytes(bytearray(b"x" * (size << 20)))
with ThreadPoolExecutor(8) as threads:
    list(threads.map(work, range(8)))
    status = Path("/proc/self/status").read_text()
print(int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]) // 1024)
"""


def kept_mib(arenas):
    """The anonymous memory of a process whose eight threads have freed megabytes."""
    words = [sys.executable, "-c", THREADS_THAT_FREE, arenas]
    return int(subprocess.run(words, check=True, capture_output=True).stdout)


def own_arenas(pid):
    """The arenas of threads: of each 64 MiB from a multiple of that on, the first part is used."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    maps = [(*(int(each, 16) for each in line.split()[0].split("-")), line) for line in lines]
    return [
        line
        for (start, end, line), (rest, rest_end, rest_line) in pairwise(maps)
        if start % ARENA_BYTES == 0 and (rest, rest_end) == (end, start + ARENA_BYTES)
        if " rw-p " in line and " ---p " in rest_line
    ]


def test_threads_share_what_they_have_freed():
    assert kept_mib("one") < kept_mib("one for each") - 16


def test_threads_of_a_server_have_no_arenas_of_their_own(tmp_path):
    with LocalCluster(tmp_path / "data") as cluster, Client(cluster.endpoint) as client:
        client.ping()
        assert own_arenas(cluster.pid) == []
