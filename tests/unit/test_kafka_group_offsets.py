"""Offsets of Kafka groups in all versions, and groups as Kafka's tools see them."""

import asyncio
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from sbp_core.errors import ConnectError
from tests.support.kafka_gateway import (
    DELETE,
    DESCRIBE,
    FORGET,
    LIST,
    NONE,
    Client,
    ask,
    codes,
    commit,
    fetch,
    join,
    member,
    run,
    topics,
)


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_are_cursors_in_every_version(version):
    async def body(gateway, client):
        joined = await member(gateway, client)
        assert await commit(gateway, client, joined, version) == {"orders-0": NONE}
        assert client.cursors == {"g": {10: 5}}
        reading = max(version - 1, 1)
        found = await fetch(gateway, client, reading, parts=("orders-0", "orders-1", "lost-0"))
        assert found == ({"orders-0": 5, "orders-1": -1, "lost-0": -1}, NONE)
        if reading >= 2:
            assert await fetch(gateway, client, reading, parts=None) == ({"orders-0": 5}, NONE)

    run(body)


def test_only_members_of_the_generation_commit():
    async def body(gateway, client):
        assert await commit(gateway, client) == {"orders-0": NONE}  # nobody reads for the group
        joined = await member(gateway, client)
        assert await commit(gateway, client) == {"orders-0": ErrorCode.unknown_member_id}
        late = SimpleNamespace(generation_id=9, member_id=joined.member_id)
        assert await commit(gateway, client, late) == {"orders-0": ErrorCode.illegal_generation}
        other = SimpleNamespace(generation_id=1, member_id="other")
        assert await commit(gateway, client, other) == {"orders-0": ErrorCode.unknown_member_id}
        gone = await commit(gateway, client, joined, group="empty")
        assert gone == {"orders-0": ErrorCode.illegal_generation}

    run(body)


def test_each_partition_of_a_commit_has_its_own_code():
    async def body(gateway, client):
        parts = ("orders-0", "secret-0", "orders-1", "gone-0", "lost-3")
        assert await commit(gateway, client, parts=parts) == {
            "orders-0": NONE,
            "secret-0": ErrorCode.topic_authorization_failed,
            "orders-1": NONE,
            "gone-0": ErrorCode.unknown_topic_or_partition,
            "lost-3": ErrorCode.unknown_topic_or_partition,
        }
        assert client.cursors == {"g": {10: 5, 11: 5}}
        client.own_groups.add("own")
        assert await commit(gateway, client, group="own") == {"orders-0": ErrorCode.non_empty_group}
        private = await commit(gateway, client, group="private")
        assert private == {"orders-0": ErrorCode.group_authorization_failed}
        assert await commit(gateway, client, offset=-1) == {"orders-0": ErrorCode.invalid_request}
        assert client.cursors == {"g": {10: 5, 11: 5}}

    run(body)


def test_a_fetch_waits_for_the_commits_before_it():
    async def body(gateway, client):
        client.may_commit.clear()
        committing = asyncio.create_task(commit(gateway, client))
        fetching = asyncio.create_task(fetch(gateway, client))
        other = await fetch(gateway, client, group="other")
        assert other == ({"orders-0": -1}, NONE)
        assert not fetching.done()
        client.may_commit.set()
        assert await committing == {"orders-0": NONE}
        assert await fetching == ({"orders-0": 5}, NONE)

    run(body)


@pytest.mark.parametrize("version", [1, 2, 8])
def test_a_fetch_that_is_refused_says_why(version):
    async def body(gateway, client):
        _, code = await fetch(gateway, client, version, group="private")
        assert code is ErrorCode.group_authorization_failed
        client.error = ConnectError("down")
        _, code = await fetch(gateway, client, version)
        assert code is ErrorCode.coordinator_load_in_progress

    run(body)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_described_in_every_version(version):
    async def body(gateway, client):
        joined = await member(gateway, client)
        client.cursors["empty"] = {10: 1}
        client.own_groups.add("own")
        names = ("g", "empty", "none", "own", "private")
        answer = await ask(
            gateway,
            client,
            DESCRIBE,
            version,
            groups=names,
            include_authorized_operations=False,
        )
        found = [(each.group_state, each.protocol_type) for each in answer.groups]
        assert found == [
            ("Stable", "consumer"),
            ("Empty", "consumer"),
            ("Dead", ""),
            ("Stable", "sbp"),
            ("", ""),
        ]
        assert answer.groups[-1].error_code is ErrorCode.group_authorization_failed
        (described,) = answer.groups[0].members
        assert described.member_id == joined.member_id
        assert described.member_assignment == joined.member_id.encode()
        assert (described.client_id, described.client_host) == ("me", "/10.0.0.1")
        assert described.member_metadata == b"topics"

    run(body)


@pytest.mark.parametrize("version", range(5))
def test_groups_are_listed_in_every_version(version):
    async def body(gateway, client):
        await member(gateway, client)
        client.cursors |= {"empty": {10: 1}, "own": {10: 1}}
        client.own_groups.add("own")
        answer = await ask(gateway, client, LIST, version, states_filter=())
        assert {each.group_id: each.protocol_type for each in answer.groups} == {
            "empty": "consumer",
            "g": "consumer",
            "own": "sbp",
        }
        if version >= 4:
            answer = await ask(gateway, client, LIST, version, states_filter=("Empty",))
            assert [(x.group_id, x.group_state) for x in answer.groups] == [("empty", "Empty")]
            answer = await ask(gateway, client, LIST, version, states_filter=("Stable",))
            assert [each.group_id for each in answer.groups] == ["g", "own"]

    run(body)


def test_a_group_of_others_is_not_listed():
    async def body(gateway, client):
        other = Client()
        other._check = lambda group: None
        await join(gateway, other, group_id="private")
        assert (await ask(gateway, client, LIST, 4)).groups == ()
        assert len((await ask(gateway, other, LIST, 4)).groups) == 1

    run(body)


@pytest.mark.parametrize("version", range(3))
def test_a_group_without_members_is_deleted_with_its_cursors(version):
    async def body(gateway, client):
        client.cursors |= {"empty": {10: 1, 11: 2}, "own": {10: 1}}
        client.own_groups.add("own")
        await member(gateway, client)
        names = ("empty", "g", "none", "own", "private")
        answer = await ask(gateway, client, DELETE, version, groups_names=names)
        assert [each.error_code for each in answer.results] == [
            NONE,
            ErrorCode.non_empty_group,
            ErrorCode.group_id_not_found,
            ErrorCode.non_empty_group,
            ErrorCode.group_authorization_failed,
        ]
        assert client.cursors == {"own": {10: 1}}

    run(body)


def test_offsets_of_a_group_without_members_are_deleted():
    async def body(gateway, client):
        client.cursors["g"] = {10: 1, 11: 2}
        answer = await ask(
            gateway, client, FORGET, 0, group_id="g", topics=topics("orders-0", "lost-1")
        )
        assert codes(answer) == {"orders-0": NONE, "lost-1": ErrorCode.unknown_topic_or_partition}
        assert client.cursors == {"g": {11: 2}}
        await member(gateway, client)
        answer = await ask(gateway, client, FORGET, 0, group_id="g", topics=topics("orders-1"))
        assert answer.error_code is ErrorCode.non_empty_group
        assert client.cursors == {"g": {11: 2}}

    run(body)
