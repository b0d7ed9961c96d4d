"""A state machine as one total table: every (state, input) is a transition or a refusal."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
I = TypeVar("I", bound=enum.Enum)  # noqa: E741


class Symbol(enum.Enum):
    """A state or an input. Each is itself alone, so it need not be hashed by its name."""

    __hash__ = object.__hash__


class Refusal(enum.Enum):
    """What stands in a table where an input is not allowed."""

    REFUSED = "refused"


REFUSED: Final = Refusal.REFUSED


@dataclass(frozen=True, slots=True)
class Machine(Generic[S, I]):
    """A named table of transitions. Construction fails unless the table is total."""

    name: str
    states: type[S]
    inputs: type[I]
    table: Mapping[S, Mapping[I, S | Refusal]]

    def __post_init__(self) -> None:
        for state in self.states:
            missing = set(self.inputs) - set(self.table.get(state, {}))
            if missing:
                raise AssertionError(f"{self.name}: {state} says nothing about {missing}")

    def maybe_next(self, state: S, received: I) -> S | None:
        """Return the state after `received`, None when it is refused in `state`."""
        target = self.table[state][received]
        return None if isinstance(target, Refusal) else target
