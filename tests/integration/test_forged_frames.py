"""Frames that only another server may send, from a peer that knows the protocol and no secret.

Against `sbp serve` as a user starts it. With TLS, the peer has a certificate as the servers have.
"""

from __future__ import annotations

import asyncio
import stat

import pytest
from msgspec.structs import replace

from sbp_core.client import AppendItem, AsyncClient, Connecting, FetchItem, StreamSpec, Transaction
from sbp_core.errors import InvalidRequestError, PermissionDeniedError, StatusCode
from sbp_core.server.trust import proof_of
from sbp_core.wire.headers import (
    ClientRole,
    HeartbeatRequest,
    IdAllocationRequest,
    RangeId,
    RangeServer,
    ReplicaServer,
    ReportMetricsRequest,
    SealRangesRequest,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end, open_txns, stage
from tests.support.cluster import Known, rows_batch, values_of
from tests.support.security import Authority
from tests.support.warm import WarmCluster
from tests.support.wire import RawClient

DENIED, CONFLICT = StatusCode.PERMISSION_DENIED, StatusCode.CONFLICT
DIGEST = b"12345678"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["plain", "TLS"])
def tls(request, authority):
    """The files of the peer, None without TLS."""
    return authority.client(authority.issue()) if request.param == "TLS" else None


@pytest.fixture(scope="module")
def served(tls, authority, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    files = None if tls is None else authority.server()
    with WarmCluster(data_dir=folder, options=["--log-level", "debug"], tls=files) as running:
        yield running


@pytest.fixture
def forge(served, tls):
    """Runs a test with a new stream that has one record, and connections to both servers."""

    def run(test):
        async def main():
            connecting = Connecting(tls=tls)
            async with AsyncClient(served.endpoint, connecting=connecting) as client:
                (stream,) = await client.create_streams(
                    [StreamSpec(test.__qualname__.partition(".")[0])]
                )
                await append(client, stream.stream_id, b"first")
                ((piece,),) = (await client.list_ranges([stream.stream_id])).values()
                (address,) = piece.servers
                async with (
                    RawClient.at(served.endpoint, tls=tls) as pd,
                    RawClient.at(address, tls=tls) as server,
                ):
                    known = Known.of(served.data_dir / "range-server-0")
                    world = World(client, stream.stream_id, address, pd, server, known, tls)
                    await asyncio.wait_for(test(world), 60)

        asyncio.run(main())

    return run


class World:
    def __init__(self, client, stream_id, address, pd, server, known, tls):
        self.client, self.stream_id, self.address = client, stream_id, address
        self.pd, self.server, self.known, self.tls = pd, server, known, tls

    def beat(self, server_id, address, secret, cluster_id=None):
        return HeartbeatRequest(
            "forged",
            ClientRole.RANGE_SERVER,
            RangeServer(server_id, address),
            cluster_id=self.known.cluster_id if cluster_id is None else cluster_id,
            server_secret=secret,
        )

    async def heartbeat(self, *beat, at=None, **fields):
        (answer,) = await (at or self.pd).ask(Opcode.HEARTBEAT, self.beat(*beat, **fields))
        return answer.status.code

    async def is_unharmed(self, *values):
        """The stream is where it was, goes on there, and has these records."""
        await append(self.client, self.stream_id, b"next")
        ((piece,),) = (await self.client.list_ranges([self.stream_id])).values()
        assert piece.servers == (self.address,)
        assert await read(self.client, self.stream_id) == [b"first", *values, b"next"]


async def append(client, stream_id, value):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch([value]))])
    return outcome.base_offset


async def read(client, stream_id):
    item = FetchItem(stream_id, 0, None, 1 << 20)
    (outcome,) = [outcome async for outcome in client.fetch([item])]
    assert outcome.error is None
    return [value for _, value in values_of(outcome.payload)]


def test_a_heartbeat_under_the_id_of_another_server(forge):
    async def test(world):
        elsewhere, me = "127.0.0.1:9", world.known.server_id
        for secret in (None, "", "0" * 64, world.known.secret[:-1]):
            assert await world.heartbeat(me, elsewhere, secret) == DENIED
            report = ReportMetricsRequest(RangeServer(me, elsewhere), disk_free_space=0)
            (answer,) = await world.pd.ask(Opcode.REPORT_METRICS, report)
            assert answer.status.code == DENIED
            assert world.known.secret not in repr(answer)
        # Neither does the right one help while the server lives: it would be a copy.
        assert await world.heartbeat(me, elsewhere, world.known.secret) == CONFLICT
        await world.is_unharmed()

    forge(test)


def test_the_heartbeat_of_a_server_names_its_cluster(forge):
    async def test(world):
        known = world.known
        code = await world.heartbeat(known.server_id, world.address, known.secret, cluster_id="")
        assert code == StatusCode.INVALID_REQUEST
        for at in (world.pd, world.server):
            unnamed = HeartbeatRequest("forged", ClientRole.PD)
            (answer,) = await at.ask(Opcode.HEARTBEAT, unnamed)
            assert answer.status.code == StatusCode.INVALID_REQUEST
        await world.is_unharmed()

    forge(test)


def test_a_new_id_at_the_address_of_another_server(forge):
    async def test(world):
        (mine,) = await world.pd.ask(Opcode.ALLOCATE_ID, IdAllocationRequest(1000, "h"))
        assert await world.heartbeat(mine.id, world.address, mine.server_secret) == CONFLICT
        (stream,) = await world.client.create_streams([StreamSpec("made-afterwards")])
        assert await append(world.client, stream.stream_id, b"x") == 0
        await world.is_unharmed()

    forge(test)


def test_an_announcement_of_the_next_range(forge):
    async def test(world):
        me = ReplicaServer(RangeServer(world.known.server_id, world.address), is_primary=True)
        planted = StreamRange(world.stream_id, 1, 10**15, -1, servers=(me,))
        request = SyncRangesRequest(1000, (StreamRanges(world.stream_id, (planted,)),))
        (answer,) = await world.server.ask(Opcode.SYNC_RANGES, request)
        assert answer.sync_responses[0].status.code == StatusCode.RANGE_NOT_FOUND
        await world.is_unharmed()

    forge(test)


def test_ending_and_sealing_and_staging_of_copies(forge):
    async def test(world):
        transaction = Transaction("p.0.x")
        await world.client.append(
            [AppendItem(world.stream_id, rows_batch([b"staged"]))], transaction=transaction
        )
        for commit in (True, False):
            with pytest.raises(PermissionDeniedError, match="only the placement driver"):
                await end(world.server, world.stream_id, "p.0.x", commit=commit)
        with pytest.raises(PermissionDeniedError):
            await stage(world.server, world.stream_id, "p.0.x~0", "a")
        seal = SealRangesRequest(1000, (RangeId(world.stream_id, 0),))
        with pytest.raises(PermissionDeniedError):
            await world.server.ask(Opcode.SEAL_RANGE, seal)
        assert ("p.0.x", 0, 1) in await open_txns(world.server)
        decided = await world.client.commit_txn(
            "p", 0, transaction.parts(), record_count=1, digest=DIGEST
        )
        assert decided.is_published
        await world.is_unharmed(b"staged")

    forge(test)


def test_a_proof_is_good_for_its_connection_only(forge):
    async def test(world):
        plain = HeartbeatRequest("forged", ClientRole.PD, cluster_id=world.known.cluster_id)

        async def greet(client, proof=None):
            (answer,) = await client.ask(Opcode.HEARTBEAT, replace(plain, server_secret=proof))
            assert world.known.secret not in repr(answer)
            return answer.status

        challenge = (await greet(world.server)).detail
        proof = proof_of(world.known.secret, challenge)
        async with RawClient.at(world.address, tls=world.tls) as other:
            assert (await greet(other)).detail != challenge
            for wrong in (proof, world.known.secret, ""):
                assert (await greet(other, wrong)).code == DENIED
            with pytest.raises(PermissionDeniedError):
                await end(other, world.stream_id, "t", commit=False)
        assert (await greet(world.server, proof)).code == StatusCode.NONE
        assert await end(world.server, world.stream_id, "t", commit=False) == (-1, 0)

    forge(test)


def test_a_batch_number_that_leaps(forge):
    async def test(world):
        async def commit(number):
            return await world.client.commit_txn("q", number, (), record_count=0, digest=DIGEST)

        await commit(41)
        for number in (2**63 - 1, 2**31, 41 + 100_001):
            with pytest.raises(InvalidRequestError, match="the last batch is 41"):
                await commit(number)
        assert not (await commit(42)).is_replay

    forge(test)


def test_secrets_are_in_no_log_and_the_owner_s_alone(served):
    identity = served.data_dir / "range-server-0" / "identity.json"
    secret = Known.of(identity.parent).secret
    assert len(secret) == 64
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    logged = served.log_path.read_text(encoding="utf-8")
    assert logged
    assert secret not in logged
