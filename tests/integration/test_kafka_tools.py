"""The commands that stand beside those of Kafka's tools on a page of the documentation."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from sbp_core.cli.main import main

PAGE = Path(__file__).parents[2] / "docs/how-to/use-the-command-line.md"
ROW = re.compile(r"^\| [^|]+ \| .* \| `(?P<command>sbp [^`]+)` \|$", re.MULTILINE)
COMMANDS = [row["command"] for row in ROW.finditer(PAGE.read_text("utf-8"))]
NAMES = re.compile(r"\b(orders|clicks|archive|billing)\b")
OWN = "kafka-tools-"
"""Stands before the names of the page here: other tests use the cluster, too."""
INPUTS = {
    "lines.txt": "one\ntwo\nthree\n",
    "pairs.txt": "k:four\nk:five\n",
    "records.jsonl": '{"key": "k", "value": "nine", "headers": [["h", "x"]]}\n',
}


def test_all_rows_have_a_command():
    table = PAGE.read_text("utf-8").partition("## From Kafka's tools")[2]
    assert len(COMMANDS) == len(re.findall(r"^\| ", table, re.MULTILINE)) - 1 >= 20


def test_the_rows_do_their_tasks_one_after_the_other(
    cluster, client, monkeypatch, tmp_path, capfdbinary
):
    monkeypatch.setenv("SBP_ENDPOINT", cluster.endpoint)
    path = tmp_path / "stdin"
    for command in COMMANDS:
        words, _, name = command.partition(" < ")
        path.write_text(INPUTS[name] if name else "")
        with path.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            exit_code = main(shlex.split(NAMES.sub(rf"{OWN}\1", words))[1:])
        output, errors = capfdbinary.readouterr()
        assert (exit_code, errors) == (0, b""), command
        assert output, command
    left = {each.name: each for each in client.list_streams() if (each.name or "").startswith(OWN)}
    assert left.keys() == {f"{OWN}orders", f"{OWN}archive"}
    orders, archive = left[f"{OWN}orders"], left[f"{OWN}archive"]
    assert orders.retention_period_ms == 7 * 86_400_000
    bounds = client.stream_bounds([orders.stream_id, archive.stream_id])
    assert [(each.start_offset, each.next_offset) for each in bounds] == [(2, 9), (0, 9)]
    assert f"{OWN}billing" not in {each.group for each in client.list_groups()}
