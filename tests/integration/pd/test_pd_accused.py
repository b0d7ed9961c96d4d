"""A range server that remembers a later commit than the placement driver has."""

import re

import pytest

from sbp_core.errors import ConfigurationError, StatusCode, StatusError
from tests.support.placement_driver import runner


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


def test_a_heartbeat_is_answered_with_the_last_commit_and_may_accuse(run, tmp_path):
    async def honest(cluster):
        server_id = await cluster.allocate()
        answer = await cluster.beat(server_id)
        assert answer.store_commit > 0
        known = {"store_commit": answer.store_commit, "store_life": answer.store_life}
        assert (await cluster.beat(server_id, **known)).status.code == 0
        strange = await cluster.beat(server_id, store_commit=1, store_life="strange")
        assert strange.status.code == StatusCode.INVALID_REQUEST
        assert not cluster.driver.failed.done()
        return server_id, answer

    server_id, answer = run(honest)

    async def accusing(cluster):
        with pytest.raises(StatusError, match=re.escape(f"sbp pd accept {tmp_path / 'data'}`")):
            await cluster.beat(
                server_id, store_commit=answer.store_commit + 9, store_life=answer.store_life
            )
        assert "an older copy" in str(await cluster.driver.failed)
        with pytest.raises(StatusError, match=re.escape(f"sbp pd accept {tmp_path / 'data'}`")):
            await cluster.describe(all_streams=True)

    run(accusing)
    with pytest.raises(ConfigurationError, match="commits may be missing"):
        run(honest)
