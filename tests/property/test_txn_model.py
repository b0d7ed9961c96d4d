"""Everything that may happen to transactions, gone through; and that broken rules are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from txn_model import ViolationError, Work, World, explore

ONE = Work(1, ((0, "p.1.a"),))
TWO = Work(2, ((0, "p.2.d"),))
OTHER_TASKS = Work(1, ((0, "p.1.b"), (0, "p.1.c")))
"""The same batch in other partitions: a replay by another driver, or by one that is not dead."""
LOSER = Work(1, ((0, "p.1.b"),))

SEALED_TWICE = World(((ONE,),), seals_max=2)
TWO_DRIVERS = World(((ONE, TWO), (LOSER,)))
MOVED = World(((ONE,), (OTHER_TASKS,)), seals_max=1)
TWO_STREAMS = World(
    (
        (Work(1, ((0, "p.1.a"), (1, "p.1.a"))),),
        (Work(1, ((0, "p.1.b"), (1, "p.1.c"))),),
    ),
    stream_count=2,
)
ZOMBIE = World(((ONE, TWO), (LOSER,)), seals_max=1)


@pytest.mark.parametrize(
    ("world", "states_min"),
    [
        (SEALED_TWICE, 1_500),
        (TWO_DRIVERS, 4_000),
        (TWO_STREAMS, 9_000),
        (MOVED, 50_000),
        (ZOMBIE, 200_000),
    ],
    ids=["sealed twice", "two drivers", "two streams", "moved", "zombie"],
)
def test_nothing_goes_wrong(world, states_min) -> None:
    assert explore(world) >= states_min


def key_by_tasks(ledger, manifest) -> bool:
    return manifest in ledger.state.decisions


@pytest.mark.parametrize(
    ("world", "fault"),
    [
        (replace(TWO_DRIVERS, is_replay=key_by_tasks), "became visible behind"),
        (replace(TWO_DRIVERS, is_abort_an_outcome=True), "a driver was told that batch 1 is done"),
        (replace(TWO_DRIVERS, is_timeout_enough=True), "takes away what is committed"),
        (replace(TWO_DRIVERS, remembers_ends=False), "is not as it was committed"),
        (replace(SEALED_TWICE, asks_sealed_ranges=False), "is not as it was committed"),
    ],
    ids=[
        "every set of tasks decides for itself",
        "who gives up decides the batch",
        "a server drops what is old without asking",
        "a server forgets what it published",
        "a sealed range is passed over without asking",
    ],
)
def test_broken_rules_are_noticed(world, fault) -> None:
    with pytest.raises(ViolationError, match=fault):
        explore(world)
