"""Rights at a placement driver, item by item; lists leave out what is not for the caller."""

import asyncio
import json
import logging

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.errors import MemberUnknownError, PermissionDeniedError, StatusCode
from sbp_core.server.audit import EVENTS
from sbp_core.wire import headers
from sbp_core.wire.headers import REQUEST_TABLES, RESULT_FIELDS
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.security import Identities
from tests.support.wire import RawClient

GRANTS = (
    *(("reader", Right.READ, "orders-*"), ("writer", Right.APPEND, "orders-*")),
    *(("owner", Right.MANAGE, "orders-*"), ("owner", Right.MANAGE, "new-*")),
    *(("reader", Right.GROUP, "mine"), ("nobody", Right.READ, "other")),
)
NAMES = ("orders-1", "orders-2", "bills")


@pytest.fixture
def identities(monkeypatch):
    return Identities(monkeypatch)


def run(folder, body):
    async def test():
        async with core_cluster(folder) as cluster:
            await cluster.client.change_grants([Grant(*each) for each in GRANTS])
            created = await cluster.client.create_streams([StreamSpec(name) for name in NAMES])
            await body(cluster, [each.stream_id for each in created])

    asyncio.run(asyncio.wait_for(test(), 60))


async def codes(cluster, address, opcode, request):
    """The status codes of the results, in their order."""
    async with RawClient.at(cluster.pd.endpoint, from_address=address) as client:
        answers = await client.ask(opcode, request)
        field = RESULT_FIELDS[type(answers[-1])]
        return [each.status.code for answer in answers for each in getattr(answer, field)]


async def refusals(cluster, address, stream_ids, names=()):
    """The messages of refused DESCRIBE_STREAMS items."""
    request = headers.DescribeStreamsRequest(1_000, tuple(stream_ids), tuple(names))
    async with RawClient.at(cluster.pd.endpoint, from_address=address) as client:
        (answer,) = await client.ask(Opcode.DESCRIBE_STREAMS, request)
    return [each.status.message for each in answer.describe_responses]


OK, DENIED = 0, StatusCode.PERMISSION_DENIED


def test_items_are_refused_one_by_one_in_their_order(tmp_path, identities, caplog):
    caplog.set_level(logging.INFO, EVENTS.name)
    at = {name: identities.address_of(name) for name in ("reader", "writer", "owner", "stranger")}

    async def body(cluster, ids):
        first, second, bills = ids
        trims = tuple(headers.TrimmedStream(each, 0) for each in (bills, first, 77, bills, second))
        trim = headers.TrimStreamsRequest(1_000, trims)
        expected = [DENIED, OK, StatusCode.NOT_FOUND, DENIED, OK]
        assert await codes(cluster, at["owner"], Opcode.TRIM_STREAMS, trim) == expected
        events = [json.loads(each.message) for each in caplog.records if each.name == EVENTS.name]
        trimmed = [each for each in events if each["operation"] == "TRIM_STREAMS"]
        assert [(each["stream_id"], each.get("status")) for each in trimmed] == [
            *((bills, "PERMISSION_DENIED"), (first, None), (77, "NOT_FOUND")),
            *((bills, "PERMISSION_DENIED"), (second, None)),
        ]
        assert await codes(cluster, at["writer"], Opcode.TRIM_STREAMS, trim) == [DENIED] * 5
        asked = headers.DescribeStreamsRequest(1_000, (bills, second), ("bills", "orders-1", "x"))
        for name in ("reader", "writer", "owner"):
            assert await codes(cluster, at[name], Opcode.DESCRIBE_STREAMS, asked) == [
                *(DENIED, OK, DENIED, OK, DENIED)
            ]
        assert await codes(cluster, at["stranger"], Opcode.DESCRIBE_STREAMS, asked) == [DENIED] * 5
        owners = tuple(headers.RangeCriteria(None, each) for each in (first, bills, second))
        ranges = headers.ListRangesRequest(1_000, owners)
        assert await codes(cluster, at["reader"], Opcode.LIST_RANGES, ranges) == [OK, DENIED, OK]
        news = tuple(headers.Stream(name=name, replica_nums=1) for name in ("new-1", "x", None))
        create = headers.CreateStreamsRequest(1_000, news)
        assert await codes(cluster, at["owner"], Opcode.CREATE_STREAMS, create) == [
            *(OK, DENIED, DENIED)
        ]
        schemas = headers.DescribeSchemasRequest(1_000, (bills, first, bills))
        assert await codes(cluster, at["writer"], Opcode.DESCRIBE_SCHEMAS, schemas) == [
            *(DENIED, OK, DENIED)
        ]

    run(tmp_path, body)


def test_a_refusal_names_what_to_grant_but_no_stream_that_is_not_for_the_caller(
    tmp_path, identities
):
    stranger, group = identities.address_of("a stranger"), identities.address_of("in a group")
    writer = identities.address_of("CN=writer,O=b")
    granted = [
        Grant("CN=writer,O=b", Right.APPEND, "orders-*"),
        Grant("in a group", Right.GROUP, "*"),
    ]

    async def body(cluster, ids):
        await cluster.client.change_grants(granted)
        for address, subject in ((stranger, "a stranger"), (group, "in a group")):
            for stream_id in (ids[0], 77):
                (message,) = await refusals(cluster, address, [stream_id])
                assert message == (
                    f"{subject} has no right on stream {stream_id}, and an administrator gives one"
                    f" by `sbp acl grant '{subject}' RIGHT NAME`, where RIGHT is read to consume,"
                    " append to produce, or manage; NAME is the name of that stream"
                )
        for name in ("orders-1", "not there"):
            (message,) = await refusals(cluster, stranger, [], [name])
            assert f"has no right on stream {name}, and an" in message
            assert message.split("'a stranger'")[1].partition("`")[0] in {
                " RIGHT orders-1",
                " RIGHT 'not there'",
            }
        trims = tuple(headers.TrimmedStream(each, 0) for each in (ids[0], ids[2]))
        async with RawClient.at(cluster.pd.endpoint, from_address=writer) as client:
            request = headers.TrimStreamsRequest(1_000, trims)
            (answer,) = await client.ask(Opcode.TRIM_STREAMS, request)
        results = getattr(answer, RESULT_FIELDS[type(answer)])
        allowed_to_know, not_allowed = (each.status.message for each in results)
        assert f"manage on stream {ids[0]} (orders-1)" in allowed_to_know
        assert "`sbp acl grant CN=writer,O=b manage orders-1`" in allowed_to_know
        assert "`sbp acl grant CN=writer,O=b manage NAME`" in not_allowed
        assert "bills" not in not_allowed

    run(tmp_path, body)


def test_a_stream_is_renamed_by_who_may_manage_both_names(tmp_path, identities):
    owner = identities.address_of("owner")

    async def body(cluster, ids):
        for name, code in (("bills-2", DENIED), ("new-7", OK)):
            renamed = headers.Stream(stream_id=ids[0], replica_nums=1, name=name)
            request = headers.UpdateStreamsRequest(1_000, (renamed,))
            assert await codes(cluster, owner, Opcode.UPDATE_STREAMS, request) == [code]

    run(tmp_path, body)


def test_lists_leave_out_what_is_not_for_the_caller(tmp_path, identities):
    reader, stranger = identities.address_of("reader"), identities.address_of("stranger")
    admin = identities.address_of("root", is_admin=True)

    async def body(cluster, ids):
        await cluster.client.commit_cursors("mine", {ids[0]: 0})
        await cluster.client.commit_cursors("theirs", {ids[0]: 0})
        streams = headers.DescribeStreamsRequest(1_000, all_streams=True)
        groups = headers.DescribeCursorsRequest(1_000)
        for address, stream_count, group_count in ((reader, 2, 1), (stranger, 0, 0), (admin, 3, 2)):
            listed = await codes(cluster, address, Opcode.DESCRIBE_STREAMS, streams)
            assert listed == [OK] * stream_count
            listed = await codes(cluster, address, Opcode.DESCRIBE_CURSORS, groups)
            assert listed == [OK] * group_count
        servers = (headers.RangeCriteria(headers.RangeServer(1)),)
        everything = headers.ListRangesRequest(1_000, servers)
        assert await codes(cluster, reader, Opcode.LIST_RANGES, everything) == [DENIED]

    run(tmp_path, body)


def test_cursors_need_the_group_and_the_stream(tmp_path, identities):
    reader, nobody = identities.address_of("reader"), identities.address_of("nobody")

    async def body(cluster, ids):
        cursors = tuple(headers.Cursor(each, 0) for each in (ids[2], ids[0]))
        mine = headers.CommitCursorsRequest(1_000, "mine", cursors)
        assert await codes(cluster, reader, Opcode.COMMIT_CURSORS, mine) == [DENIED, OK]
        described = headers.DescribeCursorsRequest(1_000, "mine")
        assert await codes(cluster, reader, Opcode.DESCRIBE_CURSORS, described) == [OK]
        for address, opcode, request in (
            (reader, Opcode.COMMIT_CURSORS, headers.CommitCursorsRequest(1_000, "your", cursors)),
            (nobody, Opcode.COMMIT_CURSORS, mine),
            (nobody, Opcode.DESCRIBE_CURSORS, described),
        ):
            with pytest.raises(PermissionDeniedError, match="lacks the right group on group"):
                await codes(cluster, address, opcode, request)

    run(tmp_path, body)


def test_only_the_identity_that_joined_acts_for_a_member(tmp_path, identities):
    reader, rival = identities.address_of("reader"), identities.address_of("rival")
    admin = identities.address_of("root", is_admin=True)

    async def ask(cluster, address, opcode, *fields):
        request = REQUEST_TABLES[opcode](1_000, "mine", *fields)
        async with RawClient.at(cluster.pd.endpoint, from_address=address) as client:
            (answer,) = await client.ask(opcode, request)
        return answer

    async def body(cluster, ids):
        granted = [Grant("rival", Right.GROUP, "mine"), Grant("rival", Right.READ, "orders-*")]
        await cluster.client.change_grants(granted)
        joined = await ask(cluster, reader, Opcode.JOIN_GROUP, "m", ("orders-*",))
        assert joined.stream_ids == (ids[0], ids[1])
        commit = ((headers.Cursor(ids[0], 7),), "m", joined.generation)
        beat = ("m", joined.generation, joined.stream_ids)
        for opcode, fields in (
            (Opcode.JOIN_GROUP, ("m", ("x",))),
            (Opcode.GROUP_HEARTBEAT, ("m", joined.generation, ())),
            (Opcode.COMMIT_CURSORS, commit),
            (Opcode.LEAVE_GROUP, ("m",)),
        ):
            with pytest.raises(PermissionDeniedError, match="'m' belongs to another identity"):
                await ask(cluster, rival, opcode, *fields)
        answer = await ask(cluster, reader, Opcode.GROUP_HEARTBEAT, *beat)
        assert (answer.generation, answer.stream_ids) == (joined.generation, joined.stream_ids)
        await ask(cluster, reader, Opcode.COMMIT_CURSORS, *commit)
        await ask(cluster, admin, Opcode.LEAVE_GROUP, "m")
        with pytest.raises(MemberUnknownError):
            await ask(cluster, reader, Opcode.GROUP_HEARTBEAT, *beat)

    run(tmp_path, body)


def test_a_revoked_right_is_gone_at_once(tmp_path, identities):
    reader = identities.address_of("reader")

    async def body(cluster, ids):
        asked = headers.DescribeStreamsRequest(1_000, (ids[0],))
        assert await codes(cluster, reader, Opcode.DESCRIBE_STREAMS, asked) == [OK]
        await cluster.client.change_grants([Grant(*GRANTS[0])], is_revoked=True)
        assert await codes(cluster, reader, Opcode.DESCRIBE_STREAMS, asked) == [DENIED]

    run(tmp_path, body)


def test_a_primary_that_does_not_answer_is_reported_by_who_reads_or_appends(tmp_path, identities):
    at = {name: identities.address_of(name) for name in ("reader", "writer", "stranger")}

    async def body(cluster, ids):
        for cause, allowed in (
            (headers.SealCause.PRIMARY_SILENT, {"reader", "writer"}),
            (headers.SealCause.REQUESTED, set()),
            (headers.SealCause.REPLICA_LACKING, set()),
        ):
            request = headers.SealRangesRequest(1_000, (headers.RangeId(ids[0], 99),), cause)
            found = {
                each: await codes(cluster, at[each], Opcode.SEAL_RANGE, request) for each in at
            }
            assert {each for each, code in found.items() if code != [DENIED]} == allowed

    run(tmp_path, body)


def test_changed_ranges_of_a_range_server_leave_out_those_of_others(tmp_path, identities):
    reader = identities.address_of("reader")

    async def body(cluster, ids):
        known = headers.DescribeRangesRequest(
            1_000, tuple(headers.RangeId(each, 0) for each in ids)
        )
        async with RawClient.at(cluster.server.endpoint) as client:
            (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, known)
        await cluster.client.append([AppendItem(each, rows_batch([b"v"])) for each in ids])
        request = headers.DescribeRangesRequest(1_000, (), answer.revision, 100)
        async with RawClient.at(cluster.server.endpoint, from_address=reader) as client:
            (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, request)
        assert {each.stream_id for each in answer.describe_responses} == {ids[0], ids[1]}
        assert answer.revision > request.since_revision

    run(tmp_path, body)


def test_a_request_whose_items_are_all_refused_is_not_about_everything(tmp_path, identities):
    reader = identities.address_of("reader")

    async def body(cluster, ids):
        known = headers.DescribeRangesRequest(1_000, (headers.RangeId(ids[0], 0),))
        async with RawClient.at(cluster.server.endpoint) as client:
            (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, known)
        await cluster.client.append([AppendItem(each, rows_batch([b"v"])) for each in ids])
        others = (headers.RangeId(ids[2], 0),)
        request = headers.DescribeRangesRequest(1_000, others, answer.revision, 100)
        async with RawClient.at(cluster.server.endpoint, from_address=reader) as client:
            (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, request)
        (result,) = answer.describe_responses
        assert (result.stream_id, result.status.code) == (ids[2], DENIED)
        both = headers.DescribeStreamsRequest(1_000, (ids[2],), all_streams=True)
        assert await codes(cluster, reader, Opcode.DESCRIBE_STREAMS, both) == [DENIED]

    run(tmp_path, body)


def test_who_may_append_nowhere_commits_and_aborts_nothing(tmp_path, identities):
    """Not without parts either, which takes the name of a producer, nor of a missing stream."""
    at = {name: identities.address_of(name) for name in ("reader", "writer")}

    async def body(cluster, ids):
        requests = (
            headers.CommitTxnRequest(1_000, "p", 1, digest=b"12345678", commit=True),
            headers.CommitTxnRequest(1_000, parts=(headers.TxnPart("p.2.x", 77, 1, 0),)),
        )
        for name in ("reader", "writer"):
            async with RawClient.at(cluster.pd.endpoint, from_address=at[name]) as client:
                for request in requests:
                    if name == "writer":
                        (answer,) = await client.ask(Opcode.COMMIT_TXN, request)
                        assert answer.status.code == OK
                        continue
                    with pytest.raises(
                        PermissionDeniedError, match=r"append on (any stream|stream 77)"
                    ):
                        await client.ask(Opcode.COMMIT_TXN, request)

    run(tmp_path, body)
