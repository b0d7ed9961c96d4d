"""Counters that the processes of a soak share, and their names."""

from __future__ import annotations

import ctypes
import multiprocessing
from itertools import starmap
from typing import Final

from benchmarks.core.soak.records import READ, WRITERS

CONTEXT: Final = multiprocessing.get_context("spawn")
"""How the processes are started: none has threads or memory of another one."""

QUERIES: Final = "queries"
"""Streaming queries that run."""
AGGREGATED: Final = "aggregated"
"""Records that the query with foreachBatch has counted."""
SHORT_LIVED: Final = "short-lived"
"""Streams that were created, filled and deleted."""
PAGES: Final = "pages"
FAILED_PAGES: Final = "failed pages"
"""Pages that were loaded, and loads that failed: a server is restarted."""


def acknowledged(writer: int) -> str:
    """Return the counter of the records of a writer that are acknowledged."""
    return f"acknowledged {writer}"


def acknowledged_bytes(writer: int) -> str:
    """Return the counter of the bytes of their values."""
    return f"acknowledged bytes {writer}"


def repeats(writer: int) -> str:
    """Return the counter of the appends of a writer that raised a retriable error."""
    return f"repeats {writer}"


def read(stream: str, writer: int) -> str:
    """Return the counter of the records of a writer that were read from a stream, each once."""
    return f"read {stream} {writer}"


def doubled(stream: str, writer: int) -> str:
    """Return the counter of those that were read again."""
    return f"doubled {stream} {writer}"


class Board:
    """Whole numbers by name, 0 at first. One process writes each of them, all may read them.

    It is an argument of the processes that share it, when they are started.
    """

    def __init__(self) -> None:
        names = [QUERIES, AGGREGATED, SHORT_LIVED, PAGES, FAILED_PAGES]
        for count in (acknowledged, acknowledged_bytes, repeats):
            names += map(count, range(len(WRITERS)))
        for count_read in (read, doubled):
            names += starmap(count_read, READ)
        self._places = {name: place for place, name in enumerate(names)}
        self._numbers = CONTEXT.RawArray(ctypes.c_int64, len(self._places))

    def __getitem__(self, name: str) -> int:
        return int(self._numbers[self._places[name]])

    def add(self, name: str, count: int = 1) -> None:
        """Add to a number that this process writes."""
        self._numbers[self._places[name]] += count
