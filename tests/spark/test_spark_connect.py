"""The connector through Spark Connect. A process has a session of one kind: this has its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest

from sbp_core.client import FetchItem
from sbp_core.records import decode_batch, split_envelopes
from tests.support.programs import program

pytestmark = pytest.mark.deployments

SECONDS = 600


@pytest.mark.spark_feature("Spark Connect")
@pytest.mark.spark_feature("`foreachBatch` in Spark Connect")
@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("grpc_status", "zstandard")),
    reason="pyspark[connect] is not installed",
)
def test_a_batch_a_stream_and_foreach_batch(cluster, client, new_streams, tmp_path):
    """Spark calls the function of foreachBatch in a session of its own, cloned from the query's."""
    origin, copy, each = new_streams(3)
    done = subprocess.run(
        program("connect", cluster.endpoint, origin, copy, each, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["module"] == "pyspark.sql.connect.session"
    assert result["is_over"]
    assert result["values"] == read_values(client, origin)
    assert sorted(result["values"], key=int) == [str(number) for number in range(100)]
    for name in (copy, each):
        assert sorted(read_values(client, name)) == sorted(result["values"])
    (session,) = result["sessions of foreachBatch"]
    assert session != result["session"]


def read_values(client, name):
    """All values of a stream, read without Spark."""
    (info,) = client.describe_streams([name])
    (outcome,) = client.fetch([FetchItem(info.stream_id, 0, None, 1 << 20)])
    assert outcome.error is None
    return [
        value.decode()
        for envelope in split_envelopes(outcome.payload)
        for value in decode_batch(envelope).column("value").to_pylist()
    ]
