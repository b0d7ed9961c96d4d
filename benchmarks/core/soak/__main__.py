"""`python -m benchmarks.core.soak`: a cluster at work for half an hour, in which nothing grows.

A placement driver, three range servers and the console run, an `sbp` command each. Three writers
append numbered records of mixed sizes at a bounded rate, one to a typed stream, one to a stream
without replicas too. A reader checks the numbers of all records before retention removes them, and
two streaming queries in Spark run all the time: a copy to another stream, exactly once, and
foreachBatch. A stream is created, filled and deleted every minute. The pages of the console are
loaded every two seconds.

Every three minutes a server is restarted, by SIGTERM or SIGKILL in turn; one range server never is.
Nothing may be lost or doubled, and no process may grow by more than 32 MiB or 8 descriptors
(`verdict` says how that is judged). The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.core.soak import board, queries, work
from benchmarks.core.soak.board import CONTEXT, Board
from benchmarks.core.soak.cluster import (
    NEVER_RESTARTED,
    PORTS,
    Cluster,
    Restart,
    planned_restarts,
    restart,
)
from benchmarks.core.soak.crew import Crew, Post
from benchmarks.core.soak.records import WRITERS
from benchmarks.core.soak.report import Result, all_records
from benchmarks.core.soak.sampling import INTERVAL_SECONDS, SPARK, looker
from benchmarks.harness.folders import new_folder
from benchmarks.harness.model import BenchmarkError
from benchmarks.harness.sampler import Sampler
from sbp_core.processes import reserved_ports

_MINUTE: Final = 60.0
_POLL_SECONDS: Final = 0.2
_QUERIES_SECONDS: Final = 300.0
_CATCH_UP_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Minutes of a soak and between restarts (0: none), and the rate of a writer."""

    minutes: float
    restart_minutes: float
    bytes_per_s: int


def soak(settings: Settings) -> Result:
    """Run a cluster and its users. Raises BenchmarkError if they do not start."""
    with ExitStack() as stack:
        folder = stack.enter_context(new_folder())
        cluster = Cluster(folder, stack.enter_context(reserved_ports(PORTS)))
        stack.callback(cluster.stop)
        stream_ids = cluster.start()
        counters = Board()
        users = Crew(Post(cluster.endpoint, stream_ids, counters, CONTEXT.Event()))
        writers = Crew(Post(cluster.endpoint, stream_ids, counters, CONTEXT.Event()))
        stack.callback(users.stop)
        stack.callback(writers.stop)
        users.start(SPARK, queries.run_queries, folder)
        _wait(users, _QUERIES_SECONDS, "the queries run", lambda: counters[board.QUERIES] == 2)
        users.start("reader", work.read)
        users.start("short-lived", work.make_short_lived)
        users.start("pages", work.look, cluster.pages)
        for number in range(len(WRITERS)):
            writers.start(f"writer-{number}", work.write, number, settings.bytes_per_s)
        sampler = Sampler(looker(cluster, (users, writers)), interval_s=INTERVAL_SECONDS)
        restarts: list[Restart] = []
        failure = ""
        try:
            with sampler:
                _pass_time(settings, cluster, counters, (users, writers), restarts)
            writers.stop()
            _catch_up(users, counters)
        except BenchmarkError as error:
            failure = str(error)
        return Result(
            looks=sampler.samples,
            restarts=restarts,
            records=all_records(counters),
            counts=_counts(counters),
            failure=failure,
        )


def _pass_time(
    settings: Settings,
    cluster: Cluster,
    counters: Board,
    crews: Sequence[Crew],
    restarts: list[Restart],
) -> None:
    """Restart servers in turn until the time is over. Raises BenchmarkError if something ends."""
    plan = planned_restarts([name for name in cluster.servers if name != NEVER_RESTARTED])
    interval = settings.restart_minutes * _MINUTE or math.inf
    began_at = time.monotonic()
    restart_at = began_at + interval
    while (now := time.monotonic()) < began_at + settings.minutes * _MINUTE:
        cluster.check()
        for crew in crews:
            crew.check()
        if now >= restart_at:
            restart_at += interval
            restarts.append(restart(cluster, counters, *next(plan)))
            done = restarts[-1]
            report(f"{done.name}, {done.signal}: writers paused for {done.pause_s:.2f} s at most")
        time.sleep(_POLL_SECONDS)


def _catch_up(users: Crew, counters: Board) -> None:
    """Wait until all that was acknowledged is read, or that takes too long: then it is lost."""
    give_up_at = time.monotonic() + _CATCH_UP_SECONDS
    while any(each.lost for each in all_records(counters)) and time.monotonic() < give_up_at:
        users.check()
        time.sleep(_POLL_SECONDS)


def _wait(crew: Crew, seconds: float, what: str, is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_so():
        crew.check()
        if time.monotonic() > give_up_at:
            raise BenchmarkError(f"{what} not after {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def _counts(counters: Board) -> dict[str, int]:
    """Return how much was done."""
    writers = range(len(WRITERS))
    return {
        "acknowledged bytes": sum(counters[board.acknowledged_bytes(each)] for each in writers),
        "appends repeated after an error": sum(counters[board.repeats(each)] for each in writers),
        "streams created, filled, deleted": counters[board.SHORT_LIVED],
        "pages loaded": counters[board.PAGES],
        "pages not loaded, in restarts": counters[board.FAILED_PAGES],
    }


def report(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Soak, and print tables; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.soak")
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="how long the writers write (30)")
    add("--restart-minutes", type=float, default=3.0, help="between restarts; 0: none (3)")
    add("--rate", type=float, default=2.0, metavar="MB/S", help="of each writer (2)")
    add("--json", type=Path, metavar="FILE", help="write all that was found, with all samples")
    options = parser.parse_args(arguments)
    settings = Settings(options.minutes, options.restart_minutes, round(options.rate * 1e6))
    result = soak(settings)
    if options.json is not None:
        content = {"settings": asdict(settings), **result.as_json()}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(result.show())
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
