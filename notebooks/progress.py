"""What a person sees while a streaming query runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 0.1


class Display:
    """What a person sees while a query runs, also after restarts from its checkpoint.

    On a terminal the line of the last micro-batch replaces the one before.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._rows = 0
        self._shown: set[int] = set()
        self._is_line_open = False

    def say(self, text: str = "") -> None:
        """Print a line for good."""
        if self._is_line_open:
            print()
        self._is_line_open = False
        print(text, flush=True)

    def show_batches(self, query: StreamingQuery) -> None:
        """Show the micro-batches of a query that were finished since the last time."""
        for entry in query.recentProgress:
            progress = json.loads(entry.json)
            # While it waits, a query reports the coming batch again and again, without rows.
            if progress["numInputRows"] and progress["batchId"] not in self._shown:
                self._shown.add(progress["batchId"])
                self._show_batch(progress)

    def _show_batch(self, progress: dict[str, Any]) -> None:
        self._rows += progress["numInputRows"]
        seconds = progress["durationMs"]["triggerExecution"] / 1000
        line = (
            f"   batch {progress['batchId']:3}  {grouped(self._rows):>8} rows read"
            f"  {grouped(progress['numInputRows'] / seconds):>8} rows/s"
            f"  {seconds:5.2f} s  {_lag(progress['sources'][0])}"
        )
        print(f"\r{line}\x1b[K" if self._is_terminal else line, end="", flush=True)
        self._is_line_open = self._is_terminal
        if not self._is_terminal:
            print(flush=True)


def _lag(source: dict[str, Any]) -> str:
    """Return how many records lie behind a batch; `source` is that of Spark's progress."""
    if source["latestOffset"] is None:  # a batch that was planned before a restart
        return "again, after the restart"
    lag = _records_before(source["latestOffset"]) - _records_before(source["endOffset"])
    return f"lag {grouped(lag):>8}"


def _records_before(offset: dict[str, Any]) -> int:
    """Return how many records lie before a source offset, in all streams together."""
    return sum(stream["next"] for stream in offset.get("streams", {}).values())


def follow(query: StreamingQuery, display: Display, is_over: Callable[[], bool]) -> None:
    """Show a query's batches until `is_over`, and stop it then; raises if the query fails."""
    while query.isActive and not is_over():
        display.show_batches(query)
        time.sleep(POLL_SECONDS)
    query.stop()
    display.show_batches(query)
    if (failure := query.exception()) is not None:
        raise failure


def grouped(number: float) -> str:
    """Return a number in groups of three digits."""
    return f"{number:,.0f}".replace(",", " ")
