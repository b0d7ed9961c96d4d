"""The bytes of an input, line by line, as they come."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError, RecordBatchError
from sbp_core.records import record_too_large

_READ_BYTES: Final = limits.MIB
LINGER_SECONDS: Final = 0.05
"""How long the first record of a batch waits for others, unless more input is there already."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is open for reading, or standard input; `name` is what errors call it."""

    descriptor: int
    name: str

    def failed(self, error: OSError) -> ConfigurationError:
        """Return the error of a read that failed."""
        hint = "; name a FILE, pipe lines into it, or use </dev/null" if self.is_standard else ""
        return ConfigurationError(f"{self.name} cannot be read: {error.strerror or error}{hint}")

    @property
    def is_standard(self) -> bool:
        """Whether it is standard input."""
        return self.name == STANDARD_INPUT


STANDARD_INPUT: Final = "standard input"


def read_lines(
    source: Opened,
    read_bytes: int = _READ_BYTES,
    *,
    line_bytes_max: int = limits.RECORD_BYTES_MAX,
    linger_seconds: float = LINGER_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[bytes]]:
    """Yield the lines of a file, as they come, without their newlines.

    An empty list means that the lines since the last one have waited `linger_seconds` by `clock`,
    and that no input is there now. The last line may lack its newline.
    Raises RecordBatchError for a line that is longer than `line_bytes_max`, by its number, after
    the lines before it; ConfigurationError for a file that cannot be read.
    """
    rest: list[bytes] = []
    rest_bytes = line_count = 0
    due_at: float | None = None
    while True:
        seconds = None if due_at is None else max(0.0, due_at - clock())
        if not select.select([source.descriptor], [], [], seconds)[0]:
            due_at = None
            yield []
            continue
        try:
            data = os.read(source.descriptor, read_bytes)
        except OSError as error:
            raise source.failed(error) from error
        first, *others = data.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if others:
            lines = [b"".join(rest), *others]
            last = lines.pop()
            rest, rest_bytes = [last], len(last)
            line_count += len(lines)
            if due_at is None:
                due_at = clock() + linger_seconds
            yield lines
        if rest_bytes > line_bytes_max:
            raise RecordBatchError(
                f"line {line_count + 1} has at least {record_too_large(rest_bytes, line_bytes_max)}"
            )
        if not data:
            if rest_bytes:
                yield [b"".join(rest)]
            return
