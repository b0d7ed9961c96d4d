"""Members of a Kafka group: their requests in all versions, and what is refused."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from sbp_core.errors import ConnectError
from sbp_core.group_limits import GROUP_MEMBERS_MAX
from sbp_core.kafka.groups.coordinator import GROUPS_BYTES_MAX, MEMBER_BYTES_MAX
from sbp_core.kafka.groups.member import Joining
from tests.support.kafka_gateway import (
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    NONE,
    ask,
    commit,
    join,
    joining,
    member,
    run,
    sync,
)


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_and_leaves_in_every_version(version):
    async def body(gateway, client):
        joined = await join(gateway, client, version)
        assert joined.error_code is NONE
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert joined.protocol_name == "range"
        assert [each.metadata for each in joined.members] == [b"topics"]
        synced = await sync(gateway, client, joined, min(version, 5))
        assert synced.assignment == joined.member_id.encode()
        who = {"group_id": "g", "member_id": joined.member_id}
        beat = await ask(gateway, client, HEARTBEAT, min(version, 4), **who, generation_id=1)
        assert beat.error_code is NONE
        left = await ask(gateway, client, LEAVE, min(version, 5), **who, members=(who,))
        assert left.error_code is NONE
        assert gateway.groups.names() == []
        beat = await ask(gateway, client, HEARTBEAT, min(version, 4), **who, generation_id=1)
        assert beat.error_code is ErrorCode.unknown_member_id

    run(body)


@pytest.mark.parametrize("version", range(5))
def test_a_coordinator_is_found_in_every_version(version):
    async def body(gateway, client):
        keys = {"key": "g", "coordinator_keys": ("g",), "key_type": 0}
        answer = await ask(gateway, client, FIND, version, **keys)
        (found,) = answer.coordinators if version >= 4 else (answer,)
        assert (found.node_id, found.host, found.port) == (7, "gateway", 9092)
        assert found.error_code is NONE

    run(body)


def test_the_first_request_of_a_newer_client_only_gets_an_id():
    async def body(gateway, client):
        joined = await ask(gateway, client, JOIN, 4, **joining())
        assert joined.error_code is ErrorCode.member_id_required
        assert joined.member_id.startswith("me-")
        assert gateway.groups.names() == []
        other = await ask(gateway, client, JOIN, 4, **joining(member_id="me-1"))
        assert other.error_code is ErrorCode.unknown_member_id

    run(body)


def test_two_members_share_a_generation():
    async def body(gateway, client):
        first = await member(gateway, client)
        waiting = asyncio.create_task(join(gateway, client))
        who = {"group_id": "g", "member_id": first.member_id, "generation_id": 1}
        code = NONE
        while code is NONE:  # until the second one has been heard of
            await asyncio.sleep(0)
            code = (await ask(gateway, client, HEARTBEAT, 4, **who)).error_code
        assert code is ErrorCode.rebalance_in_progress
        late = await sync(gateway, client, first)
        assert late.error_code is ErrorCode.rebalance_in_progress
        first = await join(gateway, client, member_id=first.member_id)
        second = await waiting
        assert first.generation_id == second.generation_id == 2
        assert first.leader == second.leader == first.member_id
        assert len(first.members) == 2
        assert second.members == ()
        answers = await asyncio.gather(sync(gateway, client, second), sync(gateway, client, first))
        assert [each.assignment for each in answers] == [
            second.member_id.encode(),
            first.member_id.encode(),
        ]

    run(body)


def test_a_static_member_takes_its_place_again_and_fences_the_old_one():
    async def body(gateway, client):
        old = await member(gateway, client, group_instance_id="one")
        new = await join(gateway, client, group_instance_id="one")
        assert new.generation_id == old.generation_id
        assert new.skip_assignment
        assert (await sync(gateway, client, new)).assignment == old.member_id.encode()
        who = {"group_id": "g", "member_id": old.member_id, "group_instance_id": "one"}
        beat = await ask(gateway, client, HEARTBEAT, 4, **who, generation_id=1)
        assert beat.error_code is ErrorCode.fenced_instance_id
        older = await join(gateway, client, 6, group_instance_id="one")
        assert (older.leader, older.members) == (new.member_id, ())  # it must not assign
        who = {"member_id": "", "group_instance_id": "one"}
        left = await ask(gateway, client, LEAVE, 5, group_id="g", members=(who,))
        assert [each.error_code for each in left.members] == [NONE]
        assert gateway.groups.names() == []

    run(body)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "a/b"}, ErrorCode.invalid_group_id),
        ({"group_id": "private"}, ErrorCode.group_authorization_failed),
        ({"group_id": "own"}, ErrorCode.inconsistent_group_protocol),
        ({"group_id": "elsewhere"}, ErrorCode.not_coordinator),
        ({"session_timeout": timedelta(milliseconds=1)}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": timedelta(days=1)}, ErrorCode.invalid_session_timeout),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"group_instance_id": ""}, ErrorCode.invalid_request),
        (
            {"protocols": ({"name": "range", "metadata": bytes(MEMBER_BYTES_MAX)},)},
            ErrorCode.invalid_request,
        ),
    ],
)
def test_joins_that_are_refused(values, code):
    async def body(gateway, client):
        client.own_groups.add("own")
        gateway.elsewhere.add("elsewhere")
        joined = await join(gateway, client, **values)
        assert joined.error_code is code
        assert gateway.groups.find(values.get("group_id", "g")) is None

    run(body)


def test_another_protocol_than_that_of_the_members_is_refused():
    async def body(gateway, client):
        await member(gateway, client)
        joined = await join(gateway, client, protocol_type="connect")
        assert joined.error_code is ErrorCode.inconsistent_group_protocol
        other = ({"name": "sticky", "metadata": b""},)
        joined = await join(gateway, client, protocols=other)
        assert joined.error_code is ErrorCode.inconsistent_group_protocol

    run(body)


def test_a_right_is_asked_for_once_in_a_while_and_not_by_heartbeats():
    async def body(gateway, client):
        joined = await member(gateway, client)
        who = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
        client.error = ConnectError("down")
        assert (await ask(gateway, client, HEARTBEAT, 4, **who)).error_code is NONE
        assert client.described == ["g"]
        refused = await join(gateway, client, group_id="h")
        assert refused.error_code is ErrorCode.coordinator_load_in_progress

    run(body)


def old_client(**values):
    """Return the request of a client that needs no id, at the coordinator."""
    protocols = (("range", b""),)
    asked = Joining(
        "", None, "me", "/host", 3_600.0, 3_600.0, "consumer", protocols, needs_id=False
    )
    return replace(asked, **values)


def test_a_request_that_waits_is_answered_when_the_gateway_closes():
    async def body(gateway, client):
        waiting = asyncio.create_task(gateway.groups.join("g", old_client()))
        await asyncio.sleep(0)  # it has begun
        gateway.groups.close()
        assert (await waiting).error is ErrorCode.not_coordinator
        late = await gateway.groups.join("g", old_client())
        assert late.error is ErrorCode.not_coordinator
        assert await commit(gateway, client) == {"orders-0": ErrorCode.not_coordinator}

    run(body, initial_delay_s=3_600.0)


def test_a_member_that_is_silent_is_dropped_by_a_timer():
    async def body(gateway, client):
        groups = gateway.groups
        first = await groups.join("g", old_client(session_s=0.01))
        second = await groups.join("g", old_client())
        assert (first.generation, second.generation) == (1, 2)
        assert [each[0] for each in second.members] == [second.member_id]
        assert groups.heartbeat("g", first.member_id, None, 1) is ErrorCode.unknown_member_id

    run(body)


def test_a_caller_that_has_left_gets_no_answer_and_the_others_do():
    async def body(gateway, client):
        groups = gateway.groups
        leaving = asyncio.create_task(groups.join("g", old_client()))
        staying = asyncio.create_task(groups.join("g", old_client()))
        await asyncio.sleep(0)  # both have begun
        leaving.cancel()
        assert (await staying).generation == 1

    run(body, initial_delay_s=0.01)


def test_all_members_together_have_a_limit():
    async def body(gateway, client):
        large = old_client(protocols=(("range", bytes(GROUPS_BYTES_MAX)),))
        refused = await gateway.groups.join("g", large)
        assert refused.error is ErrorCode.group_max_size_reached
        for _ in range(GROUP_MEMBERS_MAX):  # each is pending until its second request
            assert (await gateway.groups.join("g", old_client(needs_id=True))).member_id
        refused = await gateway.groups.join("g", old_client(needs_id=True))
        assert refused.error is ErrorCode.group_max_size_reached
        gateway.groups.close()
        assert gateway.groups.find("g") is None

    run(body)
