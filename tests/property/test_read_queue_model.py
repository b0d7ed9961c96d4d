"""The queue of reads against lists: nothing lost, nothing twice, and no class left behind."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core import limits
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass, ReadJob, ReadQueue
from tests.support.clock import examples

QUANTUM = limits.READ_QUANTUM_BYTES
CLASSES = [ReadClass(name, is_tail) for name in ("", "a", "b") for is_tail in (False, True)]
LENGTHS = st.one_of(
    st.integers(0, limits.READ_CHARGE_BYTES_MIN),
    st.integers(0, QUANTUM),
    st.integers(QUANTUM, 9 * QUANTUM),
)
PICKS = st.integers(0, 30)


class QueueMachine(RuleBasedStateMachine):
    """`waiting` is the model: the jobs of each class in the order in which they came."""

    def __init__(self):
        super().__init__()
        self.queue = ReadQueue()
        self.waiting = {}
        self.gone = []
        self.largest = 0
        self.together = {}
        """Buffer served to each of two classes since both have been waiting."""
        self.passed_over = {}
        """Buffer served to others since a class was served, or came."""

    def leave(self, job):
        self.gone.append(job)
        self.waiting[job.read_class].remove(job)
        if not self.waiting[job.read_class]:
            del self.waiting[job.read_class], self.passed_over[job.read_class]
            pairs = self.together.items()
            self.together = {pair: sums for pair, sums in pairs if job.read_class not in pair}

    @rule(read_class=st.sampled_from(CLASSES), length=LENGTHS)
    def push(self, read_class, length):
        job = ReadJob(read_class, length)
        self.largest = max(self.largest, job.charge_bytes)
        if read_class not in self.waiting:
            for other in self.waiting:
                self.together[other, read_class] = {other: 0, read_class: 0}
            self.waiting[read_class] = []
            self.passed_over[read_class] = 0
        self.waiting[read_class].append(job)
        self.queue.push(job)

    @rule(count=st.integers(1, 6))
    def pop(self, count):
        for _ in range(count):
            job = self.queue.maybe_pop()
            if job is None:
                assert not self.waiting
                return
            assert job is self.waiting[job.read_class][0]
            for pair, served in self.together.items():
                if job.read_class in pair:
                    served[job.read_class] += job.charge_bytes
            for other in self.passed_over:
                self.passed_over[other] += job.charge_bytes
            self.passed_over[job.read_class] = 0
            self.leave(job)
            self.check_fairness()

    @precondition(lambda self: self.waiting)
    @rule(pick=PICKS)
    def remove(self, pick):
        jobs = [job for each in self.waiting.values() for job in each]
        job = jobs[pick % len(jobs)]
        assert self.queue.remove(job)
        self.leave(job)

    @precondition(lambda self: self.gone)
    @rule(pick=PICKS)
    def remove_what_is_gone(self, pick):
        assert not self.queue.remove(self.gone[pick % len(self.gone)])

    def check_fairness(self):
        for served in self.together.values():
            one, other = served.values()
            assert abs(one - other) <= QUANTUM + 2 * self.largest
        turns = 1 + -(-self.largest // QUANTUM)
        for passed in self.passed_over.values():
            assert passed <= (len(CLASSES) - 1) * (turns * QUANTUM + self.largest)

    @invariant()
    def a_class_without_jobs_keeps_no_state(self):
        assert set(self.queue._classes) == set(self.waiting)

    def teardown(self):
        while self.waiting:
            self.pop(1)
        assert self.queue.maybe_pop() is None


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)


@given(st.lists(st.lists(LENGTHS, min_size=1, max_size=40), min_size=2, max_size=4))
def test_classes_that_begin_together_differ_by_a_quantum_and_the_largest_job(backlogs):
    queue = ReadQueue()
    jobs = {
        each: [ReadJob(each, length) for length in lengths]
        for each, lengths in zip(CLASSES, backlogs, strict=False)
    }
    for job in (job for each in jobs.values() for job in each):
        queue.push(job)
    largest = max(job.charge_bytes for each in jobs.values() for job in each)
    served = dict.fromkeys(jobs, 0)
    while all(jobs.values()):
        job = queue.maybe_pop()
        assert job is jobs[job.read_class].pop(0)
        served[job.read_class] += job.charge_bytes
        assert all(abs(a - b) <= QUANTUM + largest for a, b in combinations(served.values(), 2))


def test_a_small_read_of_the_tail_waits_for_one_turn_of_a_large_backlog():
    queue = ReadQueue()
    for _ in range(100):
        queue.push(ReadJob(ReadClass("", False), QUANTUM))
    queue.push(tail := ReadJob(ReadClass("", True), 1000))
    assert queue.maybe_pop() is not tail
    assert queue.maybe_pop() is tail


def test_small_reads_count_for_the_time_that_they_take():
    queue = ReadQueue()
    tail, catch_up = ReadClass("", True), ReadClass("", False)
    for _ in range(1000):
        queue.push(ReadJob(tail, 1))
    queue.push(ReadJob(catch_up, 1))
    turn = QUANTUM // limits.READ_CHARGE_BYTES_MIN
    assert [queue.maybe_pop().read_class for _ in range(turn + 1)] == [*[tail] * turn, catch_up]


@pytest.mark.parametrize("is_tail", [False, True])
def test_classes_beyond_the_limit_share_one(is_tail):
    queue = ReadQueue()
    names = [f"class-{number}" for number in range(2 * limits.READ_CLASSES_MAX)]
    jobs = [ReadJob(ReadClass(name, is_tail), QUANTUM) for name in names]
    for job in jobs:
        queue.push(job)
    assert len(queue._classes) == limits.READ_CLASSES_MAX + 1
    own, shared = jobs[: limits.READ_CLASSES_MAX], jobs[limits.READ_CLASSES_MAX :]
    assert queue.remove(shared[3])
    assert not queue.remove(shared[3])
    popped = [queue.maybe_pop() for _ in range(len(jobs) - 1)]
    assert popped == [*own, *shared[:3], *shared[4:]]
    assert queue.maybe_pop() is None
    assert not queue._classes


def test_a_shared_class_leaves_its_members_when_there_is_room_again():
    queue = ReadQueue()
    own = [ReadJob(ReadClass(str(n), True), QUANTUM) for n in range(limits.READ_CLASSES_MAX)]
    crowded, later = (ReadJob(ReadClass("late", True), QUANTUM) for _ in range(2))
    for job in (*own, crowded):
        queue.push(job)
    assert queue.remove(own[0])
    assert queue.remove(own[1])
    queue.push(later)
    assert ReadClass("late", True) in queue._classes
    assert queue.remove(crowded)
    assert queue.remove(later)
