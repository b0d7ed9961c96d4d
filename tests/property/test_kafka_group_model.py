"""Members of a Kafka group that join, sync, start again and die in any order.

A generation has one leader, its assignments go to its members only, and no request waits for ever.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kio.schema.errors import ErrorCode

from sbp_core.kafka.groups.group import Group, GroupState
from sbp_core.kafka.groups.member import Joined, Joining, Synced, Syncing
from tests.support.clock import examples

CLIENTS = st.integers(0, 4)
STATIC = {3, 4}
"""The clients with an instance id."""
SESSION_S, REBALANCE_S = 10, 30
PROTOCOLS = st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])


@dataclass
class Client:
    """The knowledge of a process. It forgets its member id when it starts again."""

    at: int
    member_id: str = ""
    joined: Joined | None = None
    answers: list[Joined | Synced] = field(default_factory=list)

    @property
    def instance_id(self):
        return f"static-{self.at}" if self.at in STATIC else None


class GroupMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1_000.0
        self.id_count = 0
        self.group = Group(3.0, self.new_id)
        self.clients = [Client(each) for each in range(5)]
        self.owners = {}
        """The client that got a member id."""
        self.leaders, self.protocols = {}, {}
        """By generation."""
        self.open = {}
        """Requests without an answer, by their number."""
        self.request_count = 0

    def new_id(self, name):
        self.id_count += 1
        return f"{name}-{self.id_count}"

    def request(self, what, on_answer):
        self.request_count += 1
        number = self.request_count
        self.open[number] = what

        def reply(answer):
            assert self.open.pop(number, None) == what, "a request has one answer"
            on_answer(answer)

        return reply

    @rule(at=CLIENTS, protocols=PROTOCOLS, is_old=st.booleans(), may_skip=st.booleans())
    def join(self, at, protocols, is_old, may_skip):
        client = self.clients[at]
        asked = Joining(
            client.member_id,
            client.instance_id,
            f"client-{at}",
            "/host",
            SESSION_S,
            REBALANCE_S,
            "consumer",
            tuple((each, f"{at} {each}".encode()) for each in protocols),
            needs_id=not is_old,
            may_skip=may_skip,
        )
        self.group.join(asked, self.now, self.request("join", lambda got: self.on_join(at, got)))

    def on_join(self, at, answer):
        client = self.clients[at]
        match answer.error:
            case ErrorCode.none:
                self.on_generation(at, answer)
                client.member_id, client.joined = answer.member_id, answer
            case ErrorCode.member_id_required:
                assert client.instance_id is None
                assert not client.member_id
                client.member_id = answer.member_id
                self.owners[answer.member_id] = at
            case ErrorCode.unknown_member_id | ErrorCode.fenced_instance_id:
                client.member_id, client.joined = "", None
            case other:
                assert other in {
                    ErrorCode.rebalance_in_progress,
                    ErrorCode.inconsistent_group_protocol,
                }

    def on_generation(self, at, answer):
        self.owners[answer.member_id] = at
        generation = answer.generation
        assert generation == self.group.generation
        assert answer.member_id in self.group.members
        for each in self.group.members.values():
            assert answer.protocol in each.asked.protocol_names
        assert self.protocols.setdefault(generation, answer.protocol) == answer.protocol
        if answer.leader_id != answer.member_id:
            assert not answer.members
            return
        assert [each[0] for each in answer.members] == list(self.group.members)
        for member_id, _, metadata in answer.members:
            assert metadata == self.group.members[member_id].metadata(answer.protocol) != b""
        if not answer.skips_assignment:
            assert self.leaders.setdefault(generation, answer.member_id) == answer.member_id

    @rule(at=CLIENTS, is_late=st.booleans())
    def sync(self, at, is_late):
        client = self.clients[at]
        if client.joined is None:
            return
        joined = client.joined
        generation = joined.generation - is_late
        assignments = {}
        if joined.leader_id == joined.member_id:
            assignments = {
                each: f"{generation} {self.owners.get(each)}".encode()
                for each, _, _ in joined.members
            }
            assignments["a stranger"] = b"?"
        asked = Syncing(
            joined.member_id, client.instance_id, generation, "consumer", None, assignments
        )
        self.group.sync(
            asked, self.now, self.request("sync", lambda got: self.on_sync(at, generation, got))
        )

    def on_sync(self, at, generation, answer):
        if answer.error is ErrorCode.none:
            assert generation == self.group.generation
            assert self.group.state is GroupState.STABLE
            assert answer.protocol == self.protocols[generation]
            # a static client that a leader does not know yet has no owner
            assert answer.assignment in {
                f"{generation} {at}".encode(),
                f"{generation} None".encode(),
            }
        elif answer.error is ErrorCode.unknown_member_id:
            assert self.clients[at].joined is None or (
                self.clients[at].joined.member_id not in self.group.members
            )

    @rule(at=CLIENTS)
    def heartbeat(self, at):
        client = self.clients[at]
        if client.joined is None:
            return
        joined = client.joined
        code = self.group.heartbeat(
            joined.member_id, client.instance_id, joined.generation, self.now
        )
        is_member = joined.member_id in self.group.members
        is_current = is_member and joined.generation == self.group.generation
        assert is_current == (code in {ErrorCode.none, ErrorCode.rebalance_in_progress})
        if is_current:
            is_preparing = self.group.state is GroupState.PREPARING
            assert is_preparing == (code is ErrorCode.rebalance_in_progress)

    @rule(at=CLIENTS)
    def commit(self, at):
        client = self.clients[at]
        generation = client.joined.generation if client.joined is not None else -1
        code = self.group.check_commit(client.member_id, client.instance_id, generation, self.now)
        if code is ErrorCode.none and self.group.members:
            assert client.member_id in self.group.members
            assert generation == self.group.generation
            assert self.group.state in {GroupState.PREPARING, GroupState.STABLE}
        if not self.group.members and generation < 0:
            assert code is ErrorCode.none

    @rule(at=CLIENTS)
    def restart(self, at):
        """A process dies, and another one takes its place, which knows no member id."""
        self.clients[at].member_id, self.clients[at].joined = "", None

    @rule(at=CLIENTS, by_instance=st.booleans())
    def leave(self, at, by_instance):
        client = self.clients[at]
        named = "" if by_instance else client.member_id
        (code,) = self.group.leave([(named, client.instance_id)], self.now)
        if code is ErrorCode.none:
            client.member_id, client.joined = "", None
        gone = {each.instance_id for each in self.group.members.values()}
        assert (
            code is not ErrorCode.none
            or client.instance_id is None
            or (client.instance_id not in gone)
        )

    @rule(seconds=st.sampled_from([0.5, 2, 5, 11, 31]))
    def wait(self, seconds):
        end = self.now + seconds
        for _ in range(100):
            if self.group.deadline > end:
                break
            self.now = max(self.group.deadline, self.now)
            self.group.expire(self.now)
            assert self.group.deadline > self.now, "no timer fires twice for the same reason"
        else:
            raise AssertionError("the group does not come to rest")
        self.now = end

    @invariant()
    def state_fits(self):
        group = self.group
        assert (group.state is GroupState.EMPTY) == (not group.members)
        assert not group.members or group.leader_id in group.members
        instances = [x.instance_id for x in group.members.values() if x.instance_id is not None]
        assert len(instances) == len(set(instances))
        assert set(group.members) == {each.member_id for each in group.members.values()}

    @invariant()
    def waiting_requests_are_held(self):
        members = self.group.members.values()
        held = {"join": 0, "sync": 0}
        for each in members:
            held["join"] += each.joining is not None
            held["sync"] += each.syncing is not None
            assert each.joining is None or self.group.state is GroupState.PREPARING
            assert each.syncing is None or self.group.state is GroupState.COMPLETING
        found = list(self.open.values())
        assert held == {each: found.count(each) for each in held}

    def teardown(self):
        """Without any more requests all requests are answered, and no member is left."""
        self.wait(10 * REBALANCE_S)
        assert not self.open
        assert self.group.state is GroupState.EMPTY
        assert not self.group.member_count
        assert self.group.deadline == float("inf")


def test_a_group_keeps_its_promises():
    run_state_machine_as_test(
        GroupMachine, settings=settings(max_examples=examples(300), stateful_step_count=40)
    )
