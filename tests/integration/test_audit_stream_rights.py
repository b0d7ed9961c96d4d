"""The stream `_audit`: those who may read it, and that nobody but the servers changes it."""

import asyncio

import pytest

from sbp_core.access.rights import AUDIT_STREAM, Grant, Right
from sbp_core.cli.main import main as command
from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec, StreamUpdate
from sbp_core.errors import (
    InvalidRequestError,
    PermissionDeniedError,
)
from sbp_core.wire import headers as h
from sbp_core.wire.opcodes import Opcode
from tests.support.audit import MS, check, events_of, grant, identified, run, stream_of
from tests.support.cluster import cluster_of, rows_batch


def test_only_those_read_it_whom_a_grant_names_it(tmp_path):
    async def body():
        async with identified(tmp_path) as (_, clients, _):
            await grant(clients["admin"], "one")
            stream = await stream_of(clients["admin"])
            grants = [Grant("everything", right, "*") for right in (Right.READ, Right.MANAGE)]
            grants += [Grant("auditor", Right.READ, AUDIT_STREAM)]
            await clients["admin"].change_grants(grants)
            count = len(await events_of(clients["admin"], lambda events: len(events) == 4))
            assert len(await events_of(clients["auditor"], bool)) == count
            assert await clients["everything"].list_streams() == []
            item = FetchItem(stream.stream_id, 0, None, 1 << 20)
            (outcome,) = [each async for each in clients["everything"].fetch([item])]
            assert "everything has no right on stream" in str(outcome.error)

    run(body())


def test_no_administrator_changes_it_and_the_servers_do(tmp_path):
    batch = rows_batch([b"forged"])

    async def body():
        async with identified(tmp_path) as (cluster, clients, _):
            admin = clients["admin"]
            (other,) = await admin.create_streams([StreamSpec("a")])
            stream = await stream_of(admin)
            at = stream.stream_id
            for refused in (
                admin.delete_streams([AUDIT_STREAM]),
                admin.trim_streams({at: 1}),
                admin.seal_streams([at]),
                admin.update_streams([StreamUpdate(AUDIT_STREAM, retention_period_ms=1)]),
                admin.update_streams([StreamUpdate(AUDIT_STREAM, name="mine")]),
                admin.call(
                    cluster.endpoints.pd,
                    Opcode.CREATE_RANGE,
                    h.CreateRangeRequest(MS, h.StreamRange(at)),
                ),
                admin.call(
                    cluster.endpoints.pd,
                    Opcode.COMMIT_TXN,
                    h.CommitTxnRequest(MS, parts=(h.TxnPart("p.1.x", at, -1),)),
                ),
                check(
                    admin,
                    cluster.endpoints.pd,
                    Opcode.REGISTER_SCHEMAS,
                    h.RegisterSchemasRequest(MS, (h.SchemaEntry(at),)),
                ),
            ):
                with pytest.raises(PermissionDeniedError, match="of the placement drivers"):
                    await refused
            (endpoint,) = cluster.endpoints.range_servers
            trim = h.TrimStreamsRequest(MS, (h.TrimmedStream(at, 1),))
            delete = h.DeleteStreamsRequest(MS, (h.Stream(at),))
            for refused in (
                admin.append([AppendItem(at, batch)]),
                check(admin, endpoint, Opcode.TRIM_STREAMS, trim),
                check(admin, endpoint, Opcode.DELETE_STREAMS, delete),
            ):
                with pytest.raises(PermissionDeniedError, match="of the range servers"):
                    await refused
            with pytest.raises(PermissionDeniedError) as failure:
                await admin.append([AppendItem(other.stream_id, batch), AppendItem(at, batch)])
            assert "stream _audit" in str(failure.value)
            events = await events_of(admin, lambda events: "TRIM_STREAMS" in str(events))
            (outcome,) = await admin.append([AppendItem(other.stream_id, batch)])
            assert outcome.base_offset == 1, "the other batch of the frame was appended"
            assert all(each["operation"] != "APPEND" for each in events)
            (server,) = cluster._range_servers
            await server._membership.report_trims({at: 1})  # as retention does
            assert (await admin.list_ranges([at]))[at][0].start_offset == 1

    run(body())


def test_refused_items_are_answered_at_their_places(tmp_path):
    """Some lack a right, others are protected, whatever rights there are on them."""

    async def body():
        async with identified(tmp_path) as (cluster, clients, _):
            (lacking,) = await clients["admin"].create_streams([StreamSpec("a")])
            stream = await stream_of(clients["admin"])
            named = Grant("everything", Right.MANAGE, AUDIT_STREAM)
            await clients["admin"].change_grants([named])
            ids = (lacking.stream_id, stream.stream_id, lacking.stream_id)
            request = h.DeleteStreamsRequest(MS, tuple(map(h.Stream, ids)))
            (frame,) = await clients["everything"].call(
                cluster.endpoints.pd, Opcode.DELETE_STREAMS, request
            )
            answer = h.decode_header(h.DeleteStreamsResponse, frame.header)
            refusals = [each.status.message for each in answer.delete_responses]
            assert ["only the servers" in each for each in refusals] == [False, True, False]

    run(body())


def test_administrators_change_it_where_the_settings_permit_it(tmp_path):
    async def body():
        async with identified(tmp_path, audit_protected=False) as (_, clients, _):
            admin = clients["admin"]
            stream = await stream_of(admin)
            (outcome,) = await admin.append([AppendItem(stream.stream_id, rows_batch([b"x"]))])
            assert outcome.base_offset == 0
            await admin.update_streams([StreamUpdate(AUDIT_STREAM, retention_period_ms=77)])
            await admin.trim_streams({stream.stream_id: 1})
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await admin.update_streams([StreamUpdate(AUDIT_STREAM, name="_b")])

    run(body())


def test_without_identities_it_is_not_removed_by_requests(tmp_path):
    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            stream = await stream_of(client)
            at = stream.stream_id
            await client.append([AppendItem(at, rows_batch([b"{}", b"{}"]))])
            for refused in (
                client.delete_streams([at]),
                client.trim_streams({at: 1}),
                client.seal_streams([at]),
                client.update_streams([StreamUpdate(at, retention_period_ms=1)]),
                check(
                    client,
                    cluster.endpoints.range_servers[0],
                    Opcode.DELETE_STREAMS,
                    h.DeleteStreamsRequest(MS, (h.Stream(at),)),
                ),
            ):
                with pytest.raises(PermissionDeniedError, match="only the servers"):
                    await refused
            (server,) = cluster._range_servers
            await server._membership.report_trims({at: 1})
            assert (await client.list_ranges([at]))[at][0].start_offset == 1

    run(body())


def test_names_of_the_cluster_itself_are_reserved_and_not_listed(tmp_path, capfd):
    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            stream = await stream_of(client)
            assert (stream.replica_count, stream.retention_period_ms) == (1, 365 * 86_400_000)
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await client.create_streams([StreamSpec("_b")])
            await client.create_streams([StreamSpec("a")])
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await client.update_streams([StreamUpdate("a", name="_b")])
            for words in (["list"], ["list", "--all"]):
                endpoint = ["--endpoint", cluster.endpoints.pd]
                await asyncio.to_thread(command, ["streams", *words, *endpoint])

    run(body())
    listed, all_listed = capfd.readouterr().out.split("ID", 2)[1:]
    assert AUDIT_STREAM not in listed
    assert AUDIT_STREAM in all_listed
