"""When a generation of a Kafka group begins, with which members and which protocol."""

from dataclasses import replace

from kio.schema.errors import ErrorCode

from sbp_core.kafka.groups.group import Group, GroupState
from sbp_core.kafka.groups.member import Joining, Syncing

SESSION_S, REBALANCE_S = 10.0, 60.0


class Joins:
    """A group without an initial delay, the answers to its requests by name, and a clock."""

    def __init__(self, initial_delay_s=0.0):
        self.group = Group(initial_delay_s, lambda _: self.joining)
        self.joining = ""
        self.now = 1_000.0
        self.answers = {}

    def join(self, name, *, protocols=("range",), again=False, **values):
        """Let a member join whose id is its name."""
        named = tuple((each, name.encode()) for each in protocols)
        asked = Joining("", None, name, "/host", SESSION_S, REBALANCE_S, "consumer", named)
        asked = replace(asked, needs_id=False, member_id=name if again else "")
        self.answers.pop(name, None)
        self.joining = name
        self.group.join(
            replace(asked, **values), self.now, lambda got: self.answers.update({name: got})
        )

    def sync(self, name, assignments=(), instance_id=None):
        asked = Syncing(name, instance_id, self.group.generation, assignments=dict(assignments))
        self.answers.pop(name, None)
        self.group.sync(asked, self.now, lambda got: self.answers.update({name: got}))

    def wait(self, seconds):
        end = self.now + seconds
        while self.group.deadline <= end:
            self.now = self.group.deadline
            self.group.expire(self.now)
        self.now = end

    def beat(self, *names):
        return [self.group.heartbeat(x, None, self.group.generation, self.now) for x in names]


def test_an_empty_group_waits_for_more_members_after_each_new_one():
    joins = Joins(initial_delay_s=3.0)
    joins.join("a")
    joins.wait(2)
    joins.join("b")
    joins.wait(2)
    assert joins.answers == {}
    joins.wait(1)
    assert {each.generation for each in joins.answers.values()} == {1}
    assert len(joins.answers["a"].members) == 2


def test_new_members_do_not_put_the_first_generation_off_for_ever():
    joins = Joins(initial_delay_s=3.0)
    for at in range(40):
        joins.join(f"m{at}")
        joins.wait(2)
    assert joins.answers["m0"].generation == 1
    assert 25 <= len(joins.answers["m0"].members) <= 31


def test_a_generation_waits_for_a_member_that_was_given_an_id():
    joins = Joins()
    joins.join("a", needs_id=True)
    joins.join("b")
    assert set(joins.answers) == {"a"}
    joins.join("a", again=True)
    assert len(joins.answers["b"].members) == 2
    joins.join("c", needs_id=True)
    joins.join("b", again=True, protocols=("range", "sticky"))
    joins.join("a", again=True)
    joins.wait(SESSION_S)
    assert joins.answers["a"].generation == 2  # c did not come


def test_a_member_that_does_not_join_again_in_time_is_dropped():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    joins.join("b")
    for _ in range(int(REBALANCE_S / 5)):
        joins.wait(5)
        joins.beat("a")
    assert joins.answers["b"].generation == 2
    assert [each[0] for each in joins.answers["b"].members] == ["b"]
    assert joins.beat("a") == [ErrorCode.unknown_member_id]


def test_a_leader_that_assigns_nothing_is_dropped_though_it_lives():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    joins.join("b")
    joins.join("a", again=True)
    joins.sync("b")
    assert "b" not in joins.answers
    for _ in range(int(REBALANCE_S / 5)):
        joins.wait(5)
        joins.beat("a")
    assert joins.answers["b"].error is ErrorCode.rebalance_in_progress
    joins.join("b", again=True)
    assert joins.answers["b"].leader_id == "b"


def test_a_silent_member_is_dropped_and_another_one_leads():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    joins.join("b")
    joins.join("a", again=True)
    joins.sync("b")
    joins.sync("a", {"a": b"1", "b": b"2"})
    assert joins.answers["b"].assignment == b"2"
    joins.wait(SESSION_S - 1)
    assert joins.beat("b") == [ErrorCode.none]
    joins.wait(1)
    assert joins.beat("b") == [ErrorCode.rebalance_in_progress]
    joins.join("b", again=True)
    assert joins.answers["b"].leader_id == "b"
    assert joins.group.generation == 3


def test_the_protocol_is_the_one_that_most_like_best_of_those_that_all_know():
    joins = Joins(initial_delay_s=1.0)
    joins.join("a", protocols=("new", "range", "sticky"))
    joins.join("b", protocols=("sticky", "range"))
    joins.join("c", protocols=("sticky", "range", "new"))
    joins.wait(1)
    assert {each.protocol for each in joins.answers.values()} == {"sticky"}


def test_a_leader_that_joins_again_begins_a_generation_and_a_follower_does_not():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    joins.join("b")
    joins.join("a", again=True)
    joins.sync("a")
    joins.sync("b")
    assert joins.group.state is GroupState.STABLE
    joins.join("b", again=True)
    assert joins.answers["b"].generation == 2
    joins.join("a", again=True)
    joins.join("b", again=True)
    assert joins.answers["a"].generation == 3


def test_members_commit_while_they_prepare_a_rebalance_and_not_while_they_complete_it():
    joins = Joins()
    joins.join("a")
    assert joins.group.check_commit("a", None, 1, joins.now) is ErrorCode.rebalance_in_progress
    joins.sync("a")
    assert joins.group.check_commit("a", None, 1, joins.now) is ErrorCode.none
    joins.join("b")
    assert joins.group.check_commit("a", None, 1, joins.now) is ErrorCode.none
    assert joins.group.check_commit("a", None, 0, joins.now) is ErrorCode.illegal_generation
    assert joins.group.check_commit("", None, -1, joins.now) is ErrorCode.unknown_member_id


def test_the_only_member_changes_its_protocol():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    joins.join("a", again=True, protocols=("sticky",), protocol_type="other")
    assert joins.answers["a"].protocol == "sticky"
    assert joins.answers["a"].protocol_type == "other"


def test_a_group_that_is_stable_waits_for_nothing_but_heartbeats():
    joins = Joins()
    joins.join("a")
    joins.sync("a")
    for _ in range(int(3 * REBALANCE_S / 5)):
        joins.wait(5)
        assert joins.beat("a") == [ErrorCode.none]
    assert joins.group.deadline == joins.now + SESSION_S


def test_a_static_member_may_miss_a_rebalance_within_its_session():
    joins = Joins()
    joins.join("a", instance_id="a", session_s=1_000.0)
    joins.sync("a", instance_id="a")
    joins.join("b", session_s=1_000.0)
    joins.wait(REBALANCE_S)
    answer = joins.answers["b"]
    assert (answer.generation, answer.leader_id) == (2, "b")
    assert [each[:2] for each in answer.members] == [("a", "a"), ("b", None)]


def test_a_static_member_that_starts_again_fences_the_request_of_the_old_one():
    joins = Joins()
    joins.join("b")
    joins.sync("b")
    joins.join("old", instance_id="a")
    joins.join("new", instance_id="a")
    assert joins.answers["old"].error is ErrorCode.fenced_instance_id
    joins.join("b", again=True)
    assert joins.answers["new"].member_id == "new"
    assert set(joins.group.members) == {"b", "new"}
