"""The signals that end a command: Ctrl-C, SIGTERM as of `timeout` and Kubernetes, SIGHUP.

Each of them raises KeyboardInterrupt, so that a file is completed and a group's progress is
committed. Nobody sends SIGTERM twice: whatever has not ended GRACE_SECONDS after the first
interrupt, such as a commit at a server that is stopped, is interrupted again.

`sbp consume` notes an interrupt, and `sbp produce` holds it back while records are appended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Final, Self, TypeVar

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


T = TypeVar("T")


class NotedInterrupts:
    """A context in which an interrupt is noted, if there is a file or a group.

    It ends only a wait for records. The second one raises KeyboardInterrupt unless there is a file:
    the reader of a pipe may be stuck. Without file and group the first one does.
    """

    def __init__(self, *, is_file: bool, has_group: bool) -> None:
        self._is_file = is_file
        self._is_waiting = False
        self.has_come = False
        """Whether there was an interrupt."""
        self._handling: AbstractContextManager[bool] = (
            handled(self._on_signal) if is_file or has_group else nullcontext(False)
        )

    def maybe_next(self, items: Iterator[T]) -> T | None:
        """Return the next item; None at the end, and once there was an interrupt."""
        if not self._is_deferring:
            return next(items, None)
        try:
            self._is_waiting = True
            return None if self.has_come else next(items, None)
        except KeyboardInterrupt:
            return None
        finally:
            self._is_waiting = False

    def __enter__(self) -> Self:
        self._is_deferring = self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _on_signal(self) -> None:
        is_first, self.has_come = not self.has_come, True
        if self._is_waiting or not (is_first or self._is_file):
            raise KeyboardInterrupt


class HeldInterrupts:
    """Raises KeyboardInterrupt at a signal; the first one not within `held`, but at the end of it.

    So it is known what became of the records that are on their way. Does nothing where Ctrl-C is
    ignored, as by commands that a shell runs in the background.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False
        self._has_come = False
        self._handling = handled(self._on_interrupt)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first interrupt back in the body."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _on_interrupt(self) -> None:
        is_first, self._has_come = not self._has_come, True
        if not (is_first and self._is_held):
            raise KeyboardInterrupt
        self._is_due = True
