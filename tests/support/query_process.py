"""Streaming queries in a process of their own, as who kills it sees it; and what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from python_workers import python_workers

from sbp_core.failpoints import VARIABLE

MAIN = Path(__file__).with_name("query_main.py")
PATIENCE_SECONDS = 300
TOO_SLOW = 75
"""Exit code of a life in which Spark gave up on its Python workers: the machine had no time."""


class QueryProcess:
    """One life of queries whose log is in `folder`; each has a folder there, named by its source.

    `order` is what query_main.py, or another `main`, takes; `failpoints` are armed in it and in its
    Python workers. Driver and JVM are one process group.
    """

    def __init__(
        self, folder: Path, life: int, *, main: Path = MAIN, failpoints: str = "", **order: Any
    ) -> None:
        self._folder, self._life = folder, life
        with (folder / "query.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, main, json.dumps({"folder": str(folder), "life": life, **order})],
                env={**os.environ, **({VARIABLE: failpoints} if failpoints else {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_it(self, does: str) -> None:
        """Wait until the query "starts", "writes" or "has written", or is over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        mark = self._folder / f"{does}.{self._life}"
        while not mark.exists() and self._process.poll() is None:
            assert time.monotonic() < deadline, f"the query never {does}"
            time.sleep(0.01)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def python_workers(self) -> list[int]:
        """The process ids of the Python workers that Spark has forked for it."""
        return python_workers(self._process.pid)

    def live(self, seconds: float) -> int | None:
        """Let it go on for so long; its exit code if it ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def wait_for_end(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill driver and JVM at once (SIGKILL)."""
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Written(NamedTuple):
    """One record as a micro-batch had it."""

    stream_id: int
    offset: int
    value: str


def is_batch_open(checkpoint: Path) -> bool:
    """Whether the last micro-batch that was begun is not committed."""
    return _last_number(checkpoint / "offsets") > last_commit(checkpoint)


def last_commit(checkpoint: Path) -> int:
    """The number of the last micro-batch that is committed; -1 before the first."""
    return _last_number(checkpoint / "commits")


def written_batches(folder: Path) -> dict[int, list[list[Written]]]:
    """Return the rows of each micro-batch, one list per life of the query that wrote it.

    Micro-batches and lives are in order, rows are sorted by stream and offset.
    """
    found: defaultdict[int, list[list[Written]]] = defaultdict(list)
    for path in sorted(folder.glob("batch-*.json")):
        rows = sorted(Written(*row) for row in json.loads(path.read_text(encoding="utf-8")))
        found[int(path.name.split(".")[0].removeprefix("batch-"))].append(rows)
    return found


def find_anomalies(
    batches: Mapping[int, Sequence[Sequence[Written]]], log: Iterable[Written]
) -> set[str]:
    """Return what is wrong with micro-batches, by number all that was written, against the log.

    altered: a replay wrote something else; of the last ones: lost, invented, doubled, or reordered
    within a stream.
    """
    last = [row for _, lives in sorted(batches.items()) for row in lives[-1]]
    found = {
        "altered": any(each != lives[0] for lives in batches.values() for each in lives),
        "lost": set(log) - set(last),
        "invented": set(last) - set(log),
        "doubled": len(last) > len(set(last)),
        "reordered": any(
            later.offset < row.offset
            for row, later in pairwise(sorted(last, key=_stream_of))
            if later.stream_id == row.stream_id
        ),
    }
    return {kind for kind, is_there in found.items() if is_there}


def _stream_of(row: Written) -> int:
    return row.stream_id


def _last_number(folder: Path) -> int:
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
