"""Only the subject that stages decides: before the first commit of a producer, after restarts."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.client import StreamSpec
from sbp_core.errors import PermissionDeniedError
from sbp_core.wire.headers import CommitTxnRequest, DescribeTxnsRequest, TxnPart
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import DIGEST, letters_of, stage
from tests.support.cluster import core_cluster
from tests.support.security import Identities
from tests.support.wire import RawClient


class Party:
    """An identity at both servers of a cluster."""

    def __init__(self, driver, server):
        self._driver, self._server = driver, server

    async def stage(self, txn_id, *names):
        return await stage(self._server, 1, txn_id, *names)

    async def commit(self, *txn_ids, producer="orders"):
        parts = tuple(TxnPart(each, 1, 1, 0) for each in txn_ids)
        request = CommitTxnRequest(
            commit=True, producer=producer, batch_number=0, parts=parts, digest=DIGEST
        )
        await self._driver.ask(Opcode.COMMIT_TXN, request)

    async def abort(self, txn_id):
        """The number of parts that are given up."""
        request = CommitTxnRequest(parts=(TxnPart(txn_id, 1, 1, 0),))
        answers = await self._driver.ask(Opcode.COMMIT_TXN, request)
        return sum(len(each.parts) for each in answers)

    async def staged(self, producer):
        """The number of batches of a producer that the range server shows."""
        answers = await self._server.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(0, producer))
        return sum(len(each.txns) for each in answers)


@asynccontextmanager
async def party(cluster, address):
    async with (
        RawClient.at(cluster.pd.endpoint, from_address=address) as driver,
        RawClient.at(cluster.server.endpoint, from_address=address) as server,
    ):
        yield Party(driver, server)


@pytest.mark.parametrize("kind", [{}, {"is_admin": True}], ids=["writer", "administrator"])
def test_what_an_identity_stages_is_its_own_before_the_first_commit(tmp_path, monkeypatch, kind):
    identities = Identities(monkeypatch)
    writer, rival = identities.address_of("writer", **kind), identities.address_of("rival")
    admin = identities.address_of("root", is_admin=True)
    stranger = identities.address_of("stranger")
    is_foreign = pytest.raises(PermissionDeniedError, match="another identity than 'rival': use")

    async def check_refused(mallory):
        for txn_id, producer in (("orders.0.x", "orders"), ("plain", "mine"), ("plain", "plain")):
            with is_foreign:
                await mallory.commit(txn_id, producer=producer)
            with is_foreign:
                await mallory.abort(txn_id)
        (refusal,) = await mallory.stage("orders.0.y", "m")
        assert isinstance(refusal, PermissionDeniedError)

    async def test():
        async with core_cluster(tmp_path) as cluster:
            await cluster.client.create_streams([StreamSpec("s")])
            granted = [Grant(each, Right.APPEND, "s") for each in ("writer", "rival")]
            await cluster.client.change_grants(granted)
            async with party(cluster, writer) as alice, party(cluster, rival) as mallory:
                assert await alice.stage("orders.0.x", "a") == [-1]
                assert await alice.stage("plain", "b") == [-1]
                assert await alice.stage("other.0.x", "c") == [-1]
                await check_refused(mallory)
            async with party(cluster, admin) as root, party(cluster, stranger) as eve:
                assert await root.staged("orders") == 1
                assert await eve.staged("orders") == 0, "it may not append to the stream"
                assert await root.abort("other.0.x") == 1
        async with core_cluster(tmp_path) as cluster:
            async with party(cluster, rival) as mallory, party(cluster, writer) as alice:
                await check_refused(mallory)
                assert await alice.stage("orders.0.x", "a") == [-1], "staged before"
                await alice.commit("orders.0.x", "plain")
            assert await letters_of(cluster, 1) == "ab"

    asyncio.run(asyncio.wait_for(test(), 60))
