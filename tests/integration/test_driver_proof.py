"""The placement driver proves its identity to range servers before they have to refuse it."""

from __future__ import annotations

import logging

from test_commit_txn import Servers, commit, create, run, stage

from sbp_core.client import AsyncClient, Transaction


def test_the_first_transaction_is_refused_by_no_server_nor_that_after_a_restart(tmp_path, caplog):
    """A warning of a refusal looks like an attack to an operator."""

    async def body(servers: Servers, client: AsyncClient) -> None:
        (one,) = await create(client, "one")
        address = (await client.list_ranges([one]))[one][0].servers[0]
        host = servers.name_at(address)
        for number in range(2):
            transaction = Transaction(f"p.{number}.x")
            await stage(client, transaction, one, "a")
            assert (await commit(client, number, transaction.parts())).is_published
            await servers.stop_server(host)
            await servers.start_server(host, int(address.rpartition(":")[2]))

    run(tmp_path, body)
    logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert not [each for each in logged if "PERMISSION_DENIED" in each]
