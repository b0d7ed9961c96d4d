"""Everything that may happen to transactions, gone through; and that broken rules are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbp_core.errors import StatusCode
from tests.support.models.transaction_values import Work
from tests.support.models.transactions import ViolationError, World, explore

ONE = Work(1, ((0, "p.1.a"),))
TWO = Work(2, ((0, "p.2.d"),))
LOSER = Work(1, ((0, "p.1.b"),))
"""The same batch once more: a replay by another driver, or by one that is not dead."""

SEALED_TWICE = World(((ONE,),), seals_max=2)
TWO_DRIVERS = World(((ONE, TWO), (LOSER,)))
MOVED = World(((ONE, TWO),), seals_max=1)
ZOMBIE = World(((ONE,), (LOSER,)), seals_max=1)
TWO_STREAMS = World(
    (
        (Work(1, ((0, "p.1.a"), (1, "p.1.a"))),),
        (Work(1, ((0, "p.1.b"), (1, "p.1.c"))),),
    ),
    stream_count=2,
)
LOST_AND_SEALED = replace(SEALED_TWICE, losses_max=1)
LOST_AND_ZOMBIE = World(((ONE,), (LOSER,)), losses_max=1)
REFUSALS = (
    StatusCode.RANGE_NOT_FOUND,
    StatusCode.INVALID_REQUEST,
    StatusCode.RS_DATA_CORRUPTED,
)
REFUSED = replace(SEALED_TWICE, faults=REFUSALS)
REFUSED_AND_ZOMBIE = World(((ONE,), (LOSER,)), faults=REFUSALS)
LOST_IN_ONE = World(((Work(1, ((0, "p.1.a"), (1, "p.1.a"))), TWO),), stream_count=2, losses_max=1)


@pytest.mark.parametrize(
    ("world", "states_min"),
    [
        (SEALED_TWICE, 2_500),
        (MOVED, 6_500),
        (TWO_DRIVERS, 19_000),
        pytest.param(TWO_STREAMS, 74_000, marks=pytest.mark.exhaustive),
        pytest.param(ZOMBIE, 130_000, marks=pytest.mark.exhaustive),
        (LOST_IN_ONE, 8_000),
        (LOST_AND_SEALED, 10_000),
        (LOST_AND_ZOMBIE, 22_000),
        (REFUSED, 3_100),
        (REFUSED_AND_ZOMBIE, 3_800),
    ],
    ids=[
        "sealed twice",
        "two batches and a seal",
        "two drivers",
        "two streams",
        "zombie",
        "lost in one of two streams",
        "lost and sealed twice",
        "lost, and a zombie",
        "refused, and sealed twice",
        "refused, and a zombie",
    ],
)
def test_nothing_goes_wrong(world, states_min) -> None:
    assert explore(world) >= states_min


def key_by_tasks(ledger, manifest) -> bool:
    return manifest in ledger.state.decisions


@pytest.mark.parametrize(
    ("world", "fault"),
    [
        (
            replace(TWO_DRIVERS, is_replay=key_by_tasks),
            "a driver got the answer that batch 1 is done",
        ),
        (
            replace(TWO_DRIVERS, is_abort_an_outcome=True),
            "a driver got the answer that batch 1 is done",
        ),
        (replace(TWO_DRIVERS, is_timeout_enough=True), "takes away what is committed"),
        (replace(TWO_DRIVERS, remembers_ends=False), "became visible behind"),
        (replace(SEALED_TWICE, asks_sealed_ranges=False), "is not as it was committed"),
        (replace(LOST_IN_ONE, asks_before_giving_up=False), "is visible|nothing of it is lost"),
        (replace(REFUSED, faults=(StatusCode.NOT_FOUND,)), "nothing of it is lost"),
        (replace(REFUSED, faults=(StatusCode.TXN_INCOMPLETE,)), "nothing of it is lost"),
    ],
    ids=[
        "every set of tasks decides for itself",
        "giving up decides the batch",
        "a server drops what is old without asking",
        "a server forgets what it published",
        "a sealed range is passed over without asking",
        "a part that may be published is given up",
        "a server without the range answers that nothing is staged",
        "a server without the range answers that the transaction is incomplete",
    ],
)
def test_broken_rules_are_noticed(world, fault) -> None:
    with pytest.raises(ViolationError, match=fault):
        explore(world)
