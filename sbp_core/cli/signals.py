"""The signals that end a command: Ctrl-C, SIGTERM as of `timeout` and Kubernetes, SIGHUP.

Each of them raises KeyboardInterrupt, so that a file is completed and a group's progress is
committed. Nobody sends SIGTERM twice: whatever has not ended GRACE_SECONDS after the first
interrupt, such as a commit at a server that is stopped, is interrupted again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS: Final = 1.5
_AGAIN_SECONDS: Final = 0.2

_came: Final[list[int]] = []
"""The signals that have come."""


def end_on_signals() -> None:
    """Let every one of the signals raise KeyboardInterrupt that is not ignored."""
    for each in ENDING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt_again)


def exit_code() -> int:
    """Return the exit code of a command that a signal has ended."""
    return 128 + (_came[0] if _came else signal.SIGINT)


def disarm() -> None:
    """Interrupt nothing any more: the command is over."""
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def handled(handle: Callable[[], None]) -> Iterator[bool]:
    """Call `handle` in the body where one of the signals would raise KeyboardInterrupt.

    Yields whether any would: in the main thread, unless all are ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    raising = (_interrupt, signal.default_int_handler)
    former = {each: signal.getsignal(each) for each in ENDING if is_main}
    former = {each: handler for each, handler in former.items() if handler in raising}

    def on_signal(number: int, _: FrameType | None) -> None:
        _note(number)
        handle()

    for each in former:
        signal.signal(each, on_signal)
    try:
        yield bool(former)
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def _note(number: int) -> None:
    if number != signal.SIGINT and not _came:
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, _AGAIN_SECONDS)
    _came.append(number)


def _interrupt(number: int, _: FrameType | None) -> None:
    _note(number)
    raise KeyboardInterrupt


def _interrupt_again(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(_came[0])
    if not callable(handler):
        raise KeyboardInterrupt
    handler(_came[0], frame)
