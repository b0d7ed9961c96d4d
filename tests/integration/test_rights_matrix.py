"""Each operation by each identity at both servers: exactly those with the right pass."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StatusCode,
    StatusError,
    UnauthenticatedError,
)
from sbp_core.rangeserver import cached_rights
from sbp_core.wire import headers as h
from sbp_core.wire.headers import REQUEST_TABLES, RESPONSE_TABLES, RESULT_FIELDS
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.security import (
    Authority,
    Identities,
    Issuer,
    Pair,
    connected,
    greet,
    identified_settings,
    served,
)
from tests.support.wire import RawClient

MS = 10_000
SUBJECTS = ("wrong", "reader", "writer", "manager", "member")
IMPOSTOR = "one with the subject of a server, of an authority for clients"
IDENTIFIED = {*SUBJECTS, IMPOSTOR, "admin", "server"}
WITHOUT = {
    "nobody": None,
    "expired": {"seconds": -600},
    "of another audience": {"aud": "another"},
    "of another issuer": {"iss": "https://elsewhere.example.org"},
}
"""Connections without an identity: the tokens that they have tried."""
ALL = IDENTIFIED | WITHOUT.keys()
READ, APPEND, MANAGE = ({each, "admin", "server"} for each in ("reader", "writer", "manager"))
ANY = READ | APPEND | MANAGE
ADMIN, SERVER = {"admin"}, {"server"}
GRANTS = [
    *(Grant("reader", Right.READ, "orders-*"), Grant("writer", Right.APPEND, "orders-*")),
    *(Grant("manager", Right.MANAGE, "orders-*"), Grant("member", Right.GROUP, "readers")),
    *(Grant("wrong", right, "bills") for right in (Right.READ, Right.APPEND, Right.MANAGE)),
    *(Grant("reader", Right.GROUP, "readers"), Grant("wrong", Right.READ, "orders-")),
]

AT_DRIVER = {
    Opcode.HEARTBEAT: (ALL, lambda _: h.HeartbeatRequest("c", h.ClientRole.CLIENT)),
    Opcode.ALLOCATE_ID: (SERVER, lambda _: h.IdAllocationRequest(MS, "h")),
    Opcode.LIST_RANGES: (ANY, lambda i: h.ListRangesRequest(MS, (h.RangeCriteria(None, i),))),
    Opcode.SEAL_RANGE: (MANAGE, lambda i: h.SealRangesRequest(MS, (h.RangeId(i, 99),))),
    Opcode.CREATE_RANGE: (MANAGE, lambda i: h.CreateRangeRequest(MS, h.StreamRange(i))),
    Opcode.CREATE_STREAMS: (
        MANAGE,
        lambda i: h.CreateStreamsRequest(MS, (h.Stream(name=f"orders-{i}x", replica_nums=1),)),
    ),
    Opcode.DELETE_STREAMS: (MANAGE, lambda i: h.DeleteStreamsRequest(MS, (h.Stream(i),))),
    Opcode.UPDATE_STREAMS: (MANAGE, lambda i: h.UpdateStreamsRequest(MS, (h.Stream(i, 1),))),
    Opcode.DESCRIBE_STREAMS: (ANY, lambda i: h.DescribeStreamsRequest(MS, (i,))),
    Opcode.TRIM_STREAMS: (MANAGE, lambda i: h.TrimStreamsRequest(MS, (h.TrimmedStream(i, 0),))),
    Opcode.COMMIT_CURSORS: (
        READ,
        lambda i: h.CommitCursorsRequest(MS, "readers", (h.Cursor(i, 0),)),
    ),
    Opcode.DESCRIBE_CURSORS: (
        READ | {"member"},
        lambda i: h.DescribeCursorsRequest(MS, "readers", (i,)),
    ),
    Opcode.JOIN_GROUP: (
        READ | {"member"},
        lambda i: h.JoinGroupRequest(MS, "readers", f"m{i}", ("orders-*",)),
    ),
    Opcode.GROUP_HEARTBEAT: (
        READ | {"member"},
        lambda i: h.GroupHeartbeatRequest(MS, "readers", f"m{i}"),
    ),
    Opcode.LEAVE_GROUP: (READ | {"member"}, lambda i: h.LeaveGroupRequest(MS, "readers", f"m{i}")),
    Opcode.DESCRIBE_GROUP: (READ | {"member"}, lambda _: h.DescribeGroupRequest(MS, "readers")),
    Opcode.REGISTER_SCHEMAS: (MANAGE, lambda i: h.RegisterSchemasRequest(MS, (h.SchemaEntry(i),))),
    Opcode.DESCRIBE_SCHEMAS: (ANY, lambda i: h.DescribeSchemasRequest(MS, (i,))),
    Opcode.REPORT_METRICS: (SERVER, lambda _: h.ReportMetricsRequest()),
    Opcode.DESCRIBE_PD_CLUSTER: (IDENTIFIED, lambda _: h.DescribePlacementDriverClusterRequest()),
    Opcode.DESCRIBE_SERVERS: (ADMIN, lambda _: h.DescribeServersRequest(MS)),
    Opcode.DRAIN_SERVERS: (ADMIN, lambda _: h.DrainServersRequest(MS, (77,))),
    Opcode.LIST_GRANTS: (ADMIN, lambda _: h.ListGrantsRequest(MS)),
    Opcode.CHANGE_GRANTS: (ADMIN, lambda _: h.ChangeGrantsRequest(MS)),
    Opcode.CHECK_RIGHTS: (SERVER, lambda i: h.CheckRightsRequest(MS, "reader", (i,))),
    Opcode.MOVE_RANGES: (ADMIN, lambda i: h.MoveRangesRequest(MS, (h.RangeMove(i, -1, (77,)),))),
    Opcode.TAKE_CUT: (ADMIN, lambda _: h.TakeCutRequest(MS)),
    Opcode.RESTORE_METADATA: (ADMIN, lambda _: h.RestoreMetadataRequest(MS, "b")),
    Opcode.COMMIT_TXN: (
        APPEND,
        lambda i: h.CommitTxnRequest(MS, parts=(h.TxnPart("p.1.x", i, -1),)),
    ),
    Opcode.DESCRIBE_TXNS: (ADMIN | SERVER, lambda _: h.DescribeTxnsRequest(MS)),
}
BATCH = rows_batch([b"v"])
AT_RANGE_SERVER = {
    Opcode.HEARTBEAT: AT_DRIVER[Opcode.HEARTBEAT],
    Opcode.APPEND: (
        APPEND,
        lambda i: h.AppendRequest(MS, (h.AppendInfo(None, 0, len(BATCH), i),)),
    ),
    Opcode.FETCH: (READ, lambda i: h.FetchRequest(fetch_requests=(h.FetchInfo(stream_id=i),))),
    Opcode.END_TXN: (set(), lambda i: h.EndTxnRequest(MS, (h.EndTxnInfo(i, 0, ("p.1.x",)),))),
    Opcode.REPLICATE: (SERVER, lambda i: h.ReplicateRequest(MS, 1, (h.ReplicatedRange(i, 0),))),
    Opcode.READ_ENTRIES: (SERVER, lambda i: h.ReadEntriesRequest(MS, i, 0)),
    Opcode.SEAL_RANGE: (set(), lambda i: h.SealRangesRequest(MS, (h.RangeId(i, 99),))),
    Opcode.SYNC_RANGES: (SERVER, lambda i: h.SyncRangesRequest(MS, (h.StreamRanges(i),))),
    Opcode.DESCRIBE_RANGE: (ANY, lambda i: h.DescribeRangesRequest(MS, (h.RangeId(i, 0),))),
    Opcode.LOOKUP_OFFSETS: (
        READ,
        lambda i: h.LookupOffsetsRequest(MS, (h.LookupOffsetInfo(i),)),
    ),
    Opcode.DELETE_STREAMS: AT_DRIVER[Opcode.DELETE_STREAMS],
    Opcode.TRIM_STREAMS: AT_DRIVER[Opcode.TRIM_STREAMS],
    Opcode.DESCRIBE_TXNS: AT_DRIVER[Opcode.DESCRIBE_TXNS],
}
"""By operation: the identities that may call it for a stream orders-N, and the request.

At a range server a seal and the end of a transaction need the proof of the placement driver.
"""


@pytest.fixture
def addresses(monkeypatch):
    identities = Identities(monkeypatch)
    found = {subject: identities.address_of(subject) for subject in SUBJECTS}
    found["admin"] = identities.address_of("root", is_admin=True)
    found["server"] = identities.address_of("CN=server", is_server=True)
    return found


REFUSALS = {StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED}


async def outcome(client, endpoint, opcode, request, payload=()):
    """The status code of the only item, or of the answer."""
    try:
        frames = await client.call(endpoint, opcode, request, payload)
    except StatusError as error:
        return error.code
    answers = [h.decode_header(RESPONSE_TABLES[opcode], frame.header) for frame in frames]
    results = [
        each
        for answer in answers
        for each in getattr(answer, RESULT_FIELDS.get(type(answer), ""), ())
        if getattr(each, "status", None) is not None
    ]
    return (results or answers)[0].status.code


@asynccontextmanager
async def connections(folder):
    """The endpoints of a cluster that asks for identities, and a client of each kind.

    The servers show each other certificates, which clients need not have.
    """
    authority, issuer = Authority(folder / "authority"), Issuer(folder)
    for_clients = Authority(folder / "clients")
    settings = replace(
        identified_settings(authority, issuer, folder / "data"),
        tls_client_ca_file=for_clients.ca_file,
        tls_client_certificates="optional",
    )
    pair = Pair(settings.tls_cert_file, settings.tls_key_file)
    certified = {
        "server": authority.client(pair),
        IMPOSTOR: authority.client(for_clients.issue_as(pair)),
    }
    tokens: dict[str, bytes | None] = {each: issuer.token(each) for each in SUBJECTS}
    tokens |= {"admin": issuer.token("alice"), **dict.fromkeys(certified)}
    for name, claims in WITHOUT.items():
        tokens[name] = None if claims is None else issuer.token("alice", **claims)
    async with served(settings) as cluster, AsyncExitStack() as stack:
        clients = {}
        for name, token in tokens.items():
            tls = certified.get(name, authority.client())
            client = await stack.enter_async_context(connected(cluster.endpoints.pd, tls))
            for endpoint in (cluster.endpoints.pd, *cluster.endpoints.range_servers):
                is_refused = name in WITHOUT and token is not None
                with pytest.raises(UnauthenticatedError) if is_refused else nullcontext():
                    await greet(client, endpoint, token)
            clients[name] = client
        await clients["admin"].change_grants(GRANTS)
        yield cluster.endpoints, clients


@pytest.mark.parametrize("table", [AT_DRIVER, AT_RANGE_SERVER], ids=["driver", "range-server"])
def test_exactly_those_with_the_right_pass(tmp_path, table):
    names = (f"orders-{number}" for number in count())

    async def body():
        async with connections(tmp_path) as (endpoints, clients):
            endpoint = endpoints.pd if table is AT_DRIVER else endpoints.range_servers[0]
            for opcode, (allowed, request_for) in table.items():
                specs = [StreamSpec(next(names)) for _ in clients]
                created = await clients["admin"].create_streams(specs)
                passed = set()
                for (name, client), stream in zip(clients.items(), created, strict=True):
                    payload = [BATCH] if opcode is Opcode.APPEND else ()
                    request = request_for(stream.stream_id)
                    if await outcome(client, endpoint, opcode, request, payload) not in REFUSALS:
                        passed.add(name)
                assert passed == allowed, opcode.name
            for opcode in {*Opcode} - table.keys() - {Opcode.PING, Opcode.GOAWAY}:
                code = await outcome(clients["server"], endpoint, opcode, REQUEST_TABLES[opcode]())
                assert code == StatusCode.UNSUPPORTED_OPERATION

    asyncio.run(asyncio.wait_for(body(), 120))


def test_every_operation_is_in_the_matrix():
    assert AT_DRIVER.keys() | AT_RANGE_SERVER.keys() | {Opcode.PING, Opcode.GOAWAY} == {*Opcode}


def test_a_refused_batch_of_a_frame_keeps_no_other_from_being_appended(tmp_path, addresses):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.change_grants(GRANTS)
            specs = [StreamSpec(name) for name in ("orders-1", "bills", "orders-2")]
            ids = [each.stream_id for each in await cluster.client.create_streams(specs)]
            values = [b"one", b"two" * 100, b"three"]
            batches = [rows_batch([each]) for each in values]
            infos = tuple(
                h.AppendInfo(None, at, len(batch), stream_id)
                for at, (stream_id, batch) in enumerate(zip(ids, batches, strict=True))
            )
            at = addresses["writer"]
            async with RawClient.at(cluster.server.endpoint, from_address=at) as client:
                answers = await client.ask(Opcode.APPEND, h.AppendRequest(MS, infos), batches)
                results = [each for answer in answers for each in answer.append_responses]
                denied = int(StatusCode.PERMISSION_DENIED)
                assert {each.request_index: each.status.code for each in results} == {
                    0: 0,
                    1: denied,
                    2: 0,
                }
                short = h.AppendRequest(MS, infos[:2])
                with pytest.raises(InvalidRequestError, match="nothing of this frame"):
                    await client.ask(Opcode.APPEND, short, [batches[0]])
            assert [await cluster.read(each) for each in ids] == [
                [(0, b"one")],
                [],
                [(0, b"three")],
            ]

    asyncio.run(asyncio.wait_for(body(), 60))


def test_streams_that_changed_are_listed_to_those_who_may_use_them(tmp_path, addresses):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.change_grants(GRANTS)
            before = await cluster.client.metadata_changes()
            specs = [StreamSpec(name) for name in ("orders-1", "bills", "orders-2")]
            ids = [each.stream_id for each in await cluster.client.create_streams(specs)]
            await cluster.client.delete_streams(["orders-2"])
            request = h.ListRangesRequest(MS, since_revision=before.revision)
            for name, hidden in (("admin", ()), ("reader", ids[1:2]), ("wrong", ids[:1])):
                at = addresses[name]
                async with RawClient.at(cluster.pd.endpoint, from_address=at) as client:
                    (answer,) = await client.ask(Opcode.LIST_RANGES, request)
                assert answer.lists_changes
                assert {*answer.changed_streams} == {*ids} - {*hidden}

    asyncio.run(asyncio.wait_for(body(), 60))


def test_appends_go_on_while_the_placement_driver_is_down(tmp_path, addresses):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.change_grants(GRANTS)
            (stream,) = await cluster.client.create_streams([StreamSpec("orders-1")])
            request = AT_RANGE_SERVER[Opcode.APPEND][1](stream.stream_id)
            at = addresses["writer"]
            async with RawClient.at(cluster.server.endpoint, from_address=at) as client:
                for offset in range(3):
                    (answer,) = await client.ask(Opcode.APPEND, request, [BATCH])
                    (result,) = answer.append_responses
                    assert (result.status.code, result.base_offset) == (0, offset)
                    await cluster.pd.stop()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_fetch_answers_refused_items_at_once_and_waits_for_the_others(tmp_path, addresses):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.change_grants(GRANTS)
            specs = [StreamSpec(name) for name in ("orders-1", "bills")]
            ids = [each.stream_id for each in await cluster.client.create_streams(specs)]
            infos = tuple(h.FetchInfo(stream_id=each, request_index=each) for each in ids)
            at = addresses["reader"]
            async with RawClient.at(cluster.server.endpoint, from_address=at) as client:
                waiting = asyncio.create_task(
                    client.call(Opcode.FETCH, h.FetchRequest(30_000, 1, infos))
                )
                while not any(client._frames.values()):
                    await client.call(Opcode.PING)
                (frame,) = next(iter(client._frames.values()))
                (refused,) = h.decode_header(h.FetchResponse, frame.header).fetch_responses
                assert refused.request_index == ids[1]
                assert refused.status.code == StatusCode.PERMISSION_DENIED
                await cluster.client.append([AppendItem(ids[0], rows_batch([b"v"]))])
                _, last = await waiting
                assert values_of(last.payload) == [(0, b"v")]

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_fetch_that_waits_ends_with_the_right_to_read(tmp_path, addresses, monkeypatch):
    """Both FETCHes wait for records of two streams; the reader loses the right to one of them."""
    monkeypatch.setattr(cached_rights, "REFRESH_MS", 0)
    read = [Grant("reader", Right.READ, name) for name in ("orders-1", "bills")]

    async def body():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.change_grants(read)
            specs = [StreamSpec(name) for name in ("orders-1", "bills")]
            ids = [each.stream_id for each in await cluster.client.create_streams(specs)]
            infos = tuple(h.FetchInfo(stream_id=each, request_index=each) for each in ids)
            address = (cluster.server.endpoint, addresses["reader"])
            async with (
                RawClient.at(address[0], from_address=address[1]) as client,
                RawClient.at(address[0], from_address=address[1]) as other,
            ):
                waiting = asyncio.create_task(
                    client.call(Opcode.FETCH, h.FetchRequest(60_000, 1, infos))
                )
                while not cluster.server._waiters._events:
                    await client.call(Opcode.PING)
                await cluster.client.change_grants(read[:1], is_revoked=True)
                codes = {0}
                while codes == {0}:
                    answers = await other.ask(Opcode.FETCH, h.FetchRequest(0, 1, infos[:1]))
                    codes = {each.status.code for each in answers[-1].fetch_responses}
                await cluster.client.append(
                    [AppendItem(each, rows_batch([b"secret"])) for each in ids]
                )
                frames = await waiting
            results = {
                each.request_index: each
                for frame in frames
                for each in h.decode_header(h.FetchResponse, frame.header).fetch_responses
            }
            assert results[ids[0]].status.code == StatusCode.PERMISSION_DENIED
            assert results[ids[0]].batch_count == 0
            assert results[ids[1]].status.code == 0
            assert [values_of(f.payload) for f in frames if f.payload] == [[(0, b"secret")]]

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_transaction_is_ended_by_whose_it_is_or_an_administrator(tmp_path, addresses):
    async def body():
        async with core_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
            grants = [Grant(each, Right.APPEND, "*") for each in ("writer", "wrong")]
            await cluster.client.change_grants(grants)
            (stream,) = await cluster.client.create_streams([StreamSpec("a")])
            clients = {
                each: await stack.enter_async_context(
                    RawClient.at(cluster.pd.endpoint, from_address=addresses[each])
                )
                for each in ("writer", "wrong", "admin")
            }

            async def end(name, **fields):
                try:
                    request = h.CommitTxnRequest(MS, "p", digest=b"12345678", **fields)
                    await clients[name].ask(Opcode.COMMIT_TXN, request)
                except PermissionDeniedError:
                    return False
                return True

            assert await end("writer", batch_number=0, commit=True)
            assert not await end("wrong", batch_number=1, commit=True)
            assert not await end("admin", batch_number=1, commit=True)
            assert not await end("wrong", batch_number=0, give_up=True)
            part = (h.TxnPart("p.1.x", stream.stream_id, 1, 0),)
            assert not await end("wrong", parts=part)
            assert await end("admin", parts=part)
            assert await end("admin", batch_number=0, give_up=True)

    asyncio.run(asyncio.wait_for(body(), 60))
