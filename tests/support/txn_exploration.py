"""Going through all states of a world of transactions."""

from __future__ import annotations

from txn_model import ViolationError, World
from txn_values import State


def is_done(state: State) -> bool:
    """Whether everything that was decided is visible, and known to be."""
    return all(head is None for head in state.publications)


def explore(world: World) -> int:
    """Go through all states; return how many there are.

    Raises ViolationError if one must not be, or if something that was decided does not become
    visible though from some state on nothing fails any more.
    """
    begin = world.begin()
    numbers = {begin: 0}
    states = [begin]
    next_of: list[int] = []
    for state in states:
        next_number = -1
        for at, after in enumerate(world.steps(state)):
            number = numbers.setdefault(after, len(states))
            if number == len(states):
                states.append(after)
            if at == 0:
                next_number = number
        next_of.append(-1 if is_done(state) else next_number)
    _check_ends(states, next_of)
    return len(states)


def _check_ends(states: list[State], next_of: list[int]) -> None:
    """Raise ViolationError if the way on without faults ends nowhere for one of the states."""
    has_end = [number < 0 for number in next_of]
    for start in range(len(states)):
        path = []
        number = start
        on_path = set()
        while not has_end[number]:
            if number in on_path:
                raise ViolationError(f"this is never published: {states[number]}")
            on_path.add(number)
            path.append(number)
            number = next_of[number]
        for each in path:
            has_end[each] = True
