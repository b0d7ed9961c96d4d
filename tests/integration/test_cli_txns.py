"""`sbp txns` against a running server."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Transaction
from tests.support.cluster import rows_batch

HEADING = ["STATE", "PRODUCER", "BATCH", "RECORDS", "STREAMS", "AGE", "TRANSACTION", "SERVER"]


@pytest.fixture
def shown(cluster, capfd):
    """Runs the command; returns the lines that it wrote."""

    def run_command(*words):
        assert main(["txns", *words, "--endpoint", cluster.endpoint]) == 0
        output, errors = capfd.readouterr()
        assert errors == ""
        return output.splitlines()

    return run_command


def stage(client, txn_id, stream_id):
    transaction = Transaction(txn_id)
    client.append([AppendItem(stream_id, rows_batch([b"a", b"b"]))], transaction=transaction)
    return transaction.parts()


def test_staged_decided_and_given_up_batches_are_listed(shown, client, new_streams):
    one, two = (info.stream_id for info in client.describe_streams(new_streams(2)))
    producer = f"cli-{one}"
    committed = [*stage(client, f"{producer}.1.a", one), *stage(client, f"{producer}.1.b", two)]
    given_up = stage(client, f"{producer}.2.z", one)
    left = stage(client, f"{producer}.3.y", one)
    decision = client.commit_txn(producer, 1, committed, record_count=4, digest=b"12345678")
    assert decision.is_published
    client.abort_txns(given_up)
    found = [json.loads(line) for line in shown(producer, "--json")]
    by_state = {each["state"]: each for each in found}
    assert by_state["aborted"]["parts"][0]["txn_id"] == f"{producer}.2.z"
    staged = by_state["staged"]
    assert (staged["batch_number"], staged["record_count"]) == (3, 2)
    assert staged["server"] == client.list_ranges([one])[one][0].servers[0]
    (decided,) = (each for each in found if each["batch_number"] == 1)
    assert decided["state"] in {"publishing", "published"}
    assert (decided["producer"], decided["record_count"]) == (producer, 4)
    assert decided["digest"] == b"12345678".hex()
    heading, *rows = shown(producer)
    assert heading.split() == HEADING
    (row,) = (row for row in rows if row.startswith("staged"))
    assert row.split()[1:5] == [producer, "3", "2", str(one)]
    assert f"{producer}.3.y" in row
    assert any(row.split()[1] == producer for row in shown()[1:])
    client.abort_txns(left)


def test_a_stream_goes_on_without_what_is_lost(shown, capfd, cluster, client, new_streams):
    (stream_id,) = (info.stream_id for info in client.describe_streams(new_streams(1)))
    producer = f"cli-{stream_id}"
    (part,) = stage(client, f"{producer}.1.a", stream_id)
    more = replace(part, record_count=3)  # three were staged once
    client.commit_txn(producer, 1, [more], record_count=3, digest=b"12345678", timeout_ms=200)
    later = stage(client, f"{producer}.2.a", stream_id)
    client.commit_txn(producer, 2, later, record_count=2, digest=b"12345678", timeout_ms=200)
    assert [row.split()[0] for row in shown(producer)[1:3]] == ["stuck", "publishing"]
    preview = shown("give-up", producer, "1")
    assert preview == [
        f"would be lost, where it is incomplete: 3 records of stream {stream_id}",
        "nothing is given up yet: repeat this with --yes",
    ]
    (previewed,) = map(json.loads, shown("give-up", producer, "1", "--json"))
    assert (previewed["done"], len(previewed["parts"])) == (False, 1)
    assert "is not stuck: nothing would be lost" in shown("give-up", producer, "2")[0]
    assert [row.split()[0] for row in shown(producer)[1:3]] == ["stuck", "publishing"]
    endpoint = ("--endpoint", cluster.endpoint)
    assert main(["txns", "give-up", producer, "2", "--yes", *endpoint]) == 1
    assert "an earlier batch" in capfd.readouterr().err
    assert shown("give-up", producer, "1", "--yes") == [
        f"lost: 3 records of batch 1 of {producer}; stream {stream_id} continues without"
    ]
    (result,) = map(json.loads, shown("give-up", producer, "1", "--yes", "--json"))
    assert (result["is_published"], result["parts"]) == (
        True,
        [asdict(replace(more, batch_count=-1))],
    )
    assert client.commit_txn(producer, 2, (), record_count=0, digest=bytes(8)).is_published
    (bounds,) = client.stream_bounds([stream_id])
    assert bounds.next_offset == 2
    assert [row.split()[0] for row in shown(producer)[1:3]] == ["lost", "published"]
    assert str(stream_id) in shown(producer)[1].split()
    assert shown("give-up", producer, "2", "--yes") == [
        f"nothing of batch 2 of {producer} is lost: it is published"
    ]


def test_a_producer_without_transactions_has_none(shown):
    assert shown("absent") == ["  ".join(HEADING)]
    assert shown("absent", "--json") == []
