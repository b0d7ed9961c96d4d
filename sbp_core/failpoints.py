"""Named places where a test makes this process fail; nothing at all happens there otherwise.

`failpoint("log.before_sync")` marks a place. The environment variable SBP_FAILPOINTS arms places
when the process starts, as a list with commas of

    NAME=ACTION[(ARGUMENT)][:N[+]]

ACTION is done when the process comes to the place NAME for the Nth time (the first, when N is not
given), and with + at every later time too:

    kill          the process ends at once, as by SIGKILL
    error(ERRNO)  OSError is raised, EIO when no errno is named; for places that do I/O
    sleep(MS)     the thread stands still

Each time a line is written to standard error, which shows a test that its fault took place.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "SBP_FAILPOINTS"

_FAULT: Final = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>kill|error|sleep)(?:\((?P<argument>\w+)\))?"
    r"(?::(?P<nth>[1-9][0-9]*)(?P<repeats>\+?))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """An armed fault: `action` with its `argument`, at the `nth` time or from it on."""

    action: str
    argument: str | None
    nth: int
    repeats: bool

    def is_due(self, hit_count: int) -> bool:
        """Whether the fault takes place the `hit_count`th time."""
        return hit_count == self.nth or (self.repeats and hit_count > self.nth)

    def do(self, sleep: Callable[[float], object]) -> None:
        """Let it happen. Raises OSError if that is what happens."""
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "sleep":
            sleep(int(self.argument or 0) / 1000)
        else:
            code = getattr(errno, self.argument or "EIO")
            raise OSError(code, os.strerror(code))


class ArmedFailpoints:
    """The places that `text` arms, and how often each was come to. Threads may share it.

    Raises ValueError when `text` is not such a list.
    """

    def __init__(self, text: str, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._faults = dict(map(_parse_fault, text.split(",")))
        self._hit_counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
        """Do what is due at the place. Raises OSError if that is it."""
        fault = self._faults.get(name)
        if fault is None:
            return
        with self._lock:
            self._hit_counts[name] += 1
            hit_count = self._hit_counts[name]
        if fault.is_due(hit_count):
            os.write(2, f"failpoint {name}: {fault.action} at hit {hit_count}\n".encode())
            fault.do(self._sleep)


def _parse_fault(text: str) -> tuple[str, Fault]:
    match = _FAULT.fullmatch(text.strip())
    argument = match["argument"] if match else None
    if match is None or not _fits(match["action"], argument):
        raise ValueError(f"{VARIABLE}: {text!r} is not NAME=ACTION[(ARGUMENT)][:N[+]]")
    fault = Fault(match["action"], argument, int(match["nth"] or 1), bool(match["repeats"]))
    return match["name"], fault


def _fits(action: str, argument: str | None) -> bool:
    if action == "sleep":
        return argument is not None and argument.isdecimal()
    if action == "error":
        return argument is None or argument in errno.errorcode.values()
    return argument is None


def _do_nothing(name: str) -> None:
    """Nothing is armed."""


_TEXT: Final = os.environ.get(VARIABLE)

failpoint: Final[Callable[[str], None]] = ArmedFailpoints(_TEXT).hit if _TEXT else _do_nothing
"""Marks a place, by name. Raises OSError where a test asks for it."""
