"""The progress of a streaming query on a terminal or in a notebook."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from sbp_spark.lag import lag

POLL_SECONDS: Final = 0.1


class Display:
    """Show the progress of a query, also after restarts from its checkpoint.

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
            f"  {seconds:5.2f} s  {_lag(progress)}"
        )
        print(f"\r{line}\x1b[K" if self._is_terminal else line, end="", flush=True)
        self._is_line_open = self._is_terminal
        if not self._is_terminal:
            print(flush=True)


def _lag(progress: dict[str, Any]) -> str:
    """Return the number of records after the batch of a progress report."""
    counts = [each.record_count for each in lag(progress)]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):  # the batch was planned before a restart
        return "again, after the restart"
    return f"lag {grouped(sum(known)):>8}"


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
