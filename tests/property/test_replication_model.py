"""Every interleaving of a small cluster keeps the promises of replication, and needs every rule."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest

from sbp_core.replication import FenceAnswer, Prefix, Replica, Stage, decided_end
from tests.support.models.replication import Bounds, BrokenPromiseError, Model, Rules, explore

TWO_ENTRIES = Model(bounds=Bounds(entries=2, crashes=1, damages=0, terms=1))
DAMAGE = Model(bounds=Bounds(entries=1, crashes=1, damages=1, terms=2))
LOSS = Model(bounds=Bounds(entries=1, crashes=0, damages=1, losses=1, terms=1))
JOINING = Model(bounds=Bounds(entries=1, crashes=1, damages=0, terms=2), members=frozenset({0, 1}))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "state_count"),
    [
        pytest.param(TWO_ENTRIES, 25_436, id="two entries"),
        pytest.param(DAMAGE, 39_869, id="a damaged copy"),
        pytest.param(LOSS, 57_515, id="a lost data directory"),
        pytest.param(JOINING, 12_538, id="a replica that joins"),
    ],
)
def test_every_interleaving_keeps_the_promises(model: Model, state_count: int) -> None:
    assert explore(model) == state_count


def test_a_damaged_copy_has_no_say_in_where_a_range_ends() -> None:
    """The fault that the model finds, also where not every interleaving is tried."""
    whole = Replica(stage=Stage.FENCED).appended(Prefix(3, b"3")).fence_answer()
    damaged = Replica().appended(Prefix(5, b"5")).damaged(Prefix(1, b"1")).fenced().fence_answer()
    assert decided_end([whole, damaged], 3, 2) is None
    assert decided_end([whole, damaged, whole], 3, 2) == Prefix(3, b"3")


def committed_by_the_primary_alone(durable: Collection[int], ack_count: int) -> int:
    return max(durable)


def decided_by_one_answer_less(
    answers: Iterable[FenceAnswer], member_count: int, ack_count: int
) -> Prefix | None:
    return decided_end(answers, member_count - 1, ack_count)


def decided_by_damaged_copies(
    answers: Iterable[FenceAnswer], member_count: int, ack_count: int
) -> Prefix | None:
    whole = [replace(answer, is_whole=True) for answer in answers]
    return decided_end(whole, member_count, ack_count)


def decided_by_the_shortest(
    answers: Iterable[FenceAnswer], member_count: int, ack_count: int
) -> Prefix | None:
    some = list(answers)
    if decided_end(some, member_count, ack_count) is None:
        return None
    return min((answer.prefix for answer in some if answer.is_whole), key=lambda end: end.seq)


def accepts_behind_a_fence(replica: Replica, before: Prefix) -> bool:
    return replica.stage is not Stage.SETTLED and replica.is_whole and replica.end == before


def reads_what_is_there(replica: Replica) -> int:
    return replica.end.seq


def fence_in_memory(replica: Replica) -> Replica:
    return replica


LEFT_OUT: dict[str, tuple[Model, Rules]] = {
    "committed on ack_count disks": (
        TWO_ENTRIES,
        Rules(committed_seq=committed_by_the_primary_alone),
    ),
    "enough answers": (TWO_ENTRIES, Rules(decided_end=decided_by_one_answer_less)),
    "the longest prefix": (TWO_ENTRIES, Rules(decided_end=decided_by_the_shortest)),
    "a damaged copy does not count": (DAMAGE, Rules(decided_end=decided_by_damaged_copies)),
    "fence, then decide": (TWO_ENTRIES, Rules(fence=fence_in_memory)),
    "nothing behind a fence": (TWO_ENTRIES, Rules(accepts=accepts_behind_a_fence)),
    "fences in order": (TWO_ENTRIES, Rules(fences_in_order=False)),
    "a fence is durable": (TWO_ENTRIES, Rules(keeps_fences=False)),
    "a primary for life": (TWO_ENTRIES, Rules(ends_with_its_process=False)),
    "only committed entries are read": (TWO_ENTRIES, Rules(readable_seq=reads_what_is_there)),
    "the first decision stands": (TWO_ENTRIES, Rules(first_decision_stands=False)),
    "writes are guarded by the term": (JOINING, Rules(guards_writes_by_term=False)),
    "the store has a member before it counts": (JOINING, Rules(joins_before_it_counts=False)),
    "another life is another server": (LOSS, Rules(knows_lives=False)),
    "a seal does not acknowledge what one disk has": (
        TWO_ENTRIES,
        Rules(waits_for_settled=False),
    ),
    "digests are compared when settling": (DAMAGE, Rules(compares_digests=False)),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_rule_that_is_left_out_breaks_a_promise(name: str) -> None:
    model, rules = LEFT_OUT[name]
    with pytest.raises(BrokenPromiseError):
        explore(replace(model, rules=rules))
