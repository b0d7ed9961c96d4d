"""The processes that use a cluster: how they are started, watched and ended."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Final

from benchmarks.core.soak.board import CONTEXT, Board
from benchmarks.harness.model import BenchmarkError

_STOP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Post:
    """The cluster, its streams, the counters and the end of the work, for each process."""

    endpoint: str
    stream_ids: Mapping[str, int]
    board: Board
    is_over: Event

    def goes_on(self, seconds: float = 0) -> bool:
        """Wait for some seconds, unless it is over before; return whether it is not."""
        parent = multiprocessing.parent_process()
        is_watched = parent is not None and parent.is_alive()
        return is_watched and not self.is_over.wait(max(0.0, seconds))


class Crew:
    """Processes by name, which stop together. Each gets the post, and arguments of its own."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._processes: dict[str, BaseProcess] = {}

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Start a process. Its error, if it has one, goes to standard error."""
        process = CONTEXT.Process(target=work, args=(self._post, *arguments), daemon=True)
        process.start()
        self._processes[name] = process

    @property
    def pids(self) -> dict[str, int]:
        """Their process ids."""
        return {name: process.pid for name, process in self._processes.items() if process.pid}

    def check(self) -> None:
        """Raise BenchmarkError if one has ended."""
        for name, process in self._processes.items():
            if process.exitcode is not None:
                raise BenchmarkError(f"{name} ended with exit code {process.exitcode}; see above")

    def stop(self) -> None:
        """End them: in good order, if that takes less than a minute."""
        self._post.is_over.set()
        for process in self._processes.values():
            process.join(_STOP_SECONDS)
            process.terminate()
