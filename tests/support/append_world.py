"""The servers of an append program: hypothesis decides when a call is answered, the test how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from sbp_core.client import AppendItem
from sbp_core.client.programs import append_state
from sbp_core.client.programs.program import Arrival, Emit, Now, Start

FRAME_ITEMS_MAX = 2


@contextmanager
def small_frames() -> Iterator[None]:
    """Make frames so small that a stream's batches do not fit into one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_state, "_ITEMS_MAX", FRAME_ITEMS_MAX)
        yield


class AppendWorld:
    """Answers each call at once, or later: then others that were sent after it may come first.

    Without `draw` at once, and in order. `reply` gets every call, in the order in which
    servers see them, and returns a frame or an error.
    """

    def __init__(self, draw, *, caller_takes_ms: float = 0) -> None:
        self._draw = draw
        self._caller_takes_ms = caller_takes_ms
        self._now_ms = 0.0
        self._count = 0
        self._held: dict[int, object] = {}
        self._arrivals: dict[int, Arrival] = {}

    def reply(self, call):
        raise NotImplementedError

    def run(self, program, groups: Iterable[Sequence[AppendItem]] = ()):
        """Run a program to its end; what it takes while it runs are the `groups`."""
        given = iter(groups)
        result = None
        while True:
            try:
                effect = program.send(result)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, Emit):
                self._now_ms += self._caller_takes_ms
                result = next(given, None)
            elif isinstance(effect, Now):
                result = self._now_ms
            elif isinstance(effect, Start):
                result = self._start(effect.call)
            elif effect.numbers:
                result = self._receive(effect.numbers)
            else:
                self._now_ms = effect.until_ms
                result = None

    def _start(self, call) -> int:
        number = self._count
        self._count += 1
        self._held[number] = call
        if self._draw is None or self._draw(st.booleans()):
            self._serve(number)
        return number

    def _serve(self, number: int) -> None:
        self._arrivals[number] = Arrival(number, self.reply(self._held.pop(number)))

    def _receive(self, numbers) -> Arrival:
        number = min(numbers)
        if self._draw is not None:
            number = self._draw(st.sampled_from(sorted(numbers)))
        if number in self._held:
            self._serve(number)
        return self._arrivals.pop(number)
