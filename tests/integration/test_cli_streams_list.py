"""`sbp streams list` against a running server."""

import json

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem
from tests.support.cluster import rows_batch


@pytest.fixture
def run(cluster, capfd):
    """Runs the command; returns its exit code and what it wrote."""

    def run_command(*words):
        exit_code = main(["streams", "list", *words, "--endpoint", cluster.endpoint])
        return exit_code, *capfd.readouterr()

    return run_command


@pytest.fixture
def streams(client, new_streams):
    """A stream whose last batch is the second one, and an empty one."""
    filled, empty = client.describe_streams(new_streams(2))
    items = [AppendItem(filled.stream_id, rows_batch([b"a", b"b"])) for _ in range(2)]
    outcomes = client.append(items)
    return filled, empty, outcomes[-1].append_time_ms


def test_the_last_append_is_shown(run, streams):
    filled, empty, appended_at_ms = streams
    exit_code, output, errors = run(filled.name, empty.name)
    assert (exit_code, errors) == (0, "")
    heading, first, second = output.splitlines()
    assert heading.split("  ")[-1].strip() == "CREATED"
    assert "LAST APPEND" in heading
    at = heading.index("LAST APPEND")
    assert first[at:].split("  ")[0].endswith(" ago")
    assert second[at:].split()[0] == "-"
    exit_code, output, _ = run(filled.name, empty.name, "--json")
    found = [json.loads(line) for line in output.splitlines()]
    assert [(each["name"], each["last_append_ms"]) for each in found] == [
        (filled.name, appended_at_ms),
        (empty.name, None),
    ]


def test_names_and_patterns_select_streams(run, streams):
    filled, empty, _ = streams
    _, output, _ = run(f"{filled.name}*", empty.name, "--json")
    found = {json.loads(line)["name"] for line in output.splitlines()}
    assert {filled.name, empty.name} <= found
    assert all(each.startswith(filled.name) or each == empty.name for each in found)
    assert run("nowhere-*", "--json") == (0, "", "")
    exit_code, output, errors = run("nowhere")
    assert (exit_code, output) == (1, "")
    assert "there is no stream nowhere" in errors
    assert run("a*b")[0] == 2
