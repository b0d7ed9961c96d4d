"""Rows that a sink staged and will never commit are given up at once, or by the next run."""

import pyarrow as pa
import pytest

from sbp_core.client import StreamSpec
from sbp_spark.options.sink import BatchKey, parse_sink_options
from sbp_spark.writing.sinks import StagedFor, give_up_earlier_runs, write_rows
from tests.support.clock import until

KEY = BatchKey("0" * 36, 5)
ROWS = pa.record_batch({"value": pa.array([b"x" * 10_000] * 100, pa.binary())})


@pytest.fixture
def options(cluster, client, request):
    name = f"abandoned-{request.node.name}"
    client.create_streams([StreamSpec(name)])
    given = {"endpoint": cluster.endpoint, "stream": name, "batchBytes": "64k"}
    return parse_sink_options(given, streaming=True)


def staged(client):
    return [each.parts[0].txn_id for each in client.describe_txns(KEY.producer) if each.server]


def test_a_task_that_fails_gives_up_what_it_staged(client, options):
    def poisoned():
        for _ in range(30):
            yield ROWS
        raise ValueError("poison")

    for _ in range(4):
        with pytest.raises(ValueError, match="poison"):
            write_rows(poisoned(), client, options, StagedFor(KEY, True))
    until(lambda: not staged(client))


def test_the_next_run_gives_up_what_an_earlier_one_left(client, options):
    for run in ("a" * 12, "a" * 12, "b" * 12):
        write_rows([ROWS], client, options, StagedFor(KEY, True, run))
    assert len(staged(client)) == 3
    now = StagedFor(KEY, True, "b" * 12)
    give_up_earlier_runs(client, now)
    assert len(staged(client)) == 3  # they may be of a run that is just being stopped
    give_up_earlier_runs(client, now, overlap_ms=0)
    until(lambda: len(staged(client)) == 1)
    assert staged(client)[0].rpartition(".")[2].startswith("b" * 12)
