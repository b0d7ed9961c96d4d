"""`sbp produce` and `sbp consume` with servers of ElasticStream's dialect, real and stand-in."""

from __future__ import annotations

import sys

import pytest

from sbp_core.cli.main import main
from sbp_core.client import Client, StreamSpec
from tests.support.dialect import ElasticStreamPeer, stored_records


@pytest.fixture
def produce(monkeypatch, tmp_path, capfd):
    """Runs `sbp produce` in this process; returns its exit code and output."""

    def run(endpoint: str, stream_id: int, text: bytes, *words: str) -> tuple[int, str]:
        path = tmp_path / "stdin"
        path.write_bytes(text)
        with path.open("rb") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = main(["produce", str(stream_id), *words, "--endpoint", endpoint])
        return code, "".join(capfd.readouterr())

    return run


def records_of(endpoint: str, stream_id: int) -> list[tuple[int, dict, bytes]]:
    found = stored_records(endpoint, stream_id)
    return [(each.offset, each.headers, each.body) for each in found]


EXPECTED = [(0, {"Keys": "k"}, b"v"), (1, {}, b"no key"), (2, {"Keys": ""}, b"")]


def test_lines_go_to_a_stand_in_as_the_java_client_reads_them(produce, peers) -> None:
    server = ElasticStreamPeer(peers(), peers(), 7)
    code, output = produce(server.endpoint, 7, b"k:v\nno key\n:\n", "--key-separator", ":")
    assert code == 0, output
    assert "3 records appended" in output
    assert records_of(server.endpoint, 7) == EXPECTED


def test_lines_go_to_our_servers_in_that_dialect(produce, foreign_cluster) -> None:
    with Client(foreign_cluster.endpoint) as client:
        (info,) = client.create_streams([StreamSpec(None)])
    where = foreign_cluster.endpoint, info.stream_id
    code, output = produce(*where, b"k:v\nno key\n:\n", "--key-separator", ":")
    assert code == 0, output
    assert records_of(*where) == EXPECTED


def test_a_key_that_is_no_text_is_refused_by_its_record(produce, peers) -> None:
    server = ElasticStreamPeer(peers(), peers(), 7)
    code, output = produce(server.endpoint, 7, b"a:b\n\xff:c\n", "--key-separator", ":")
    assert code != 0
    assert "record 2: a key that is not UTF-8" in output
    assert server.next_offset(7) == 1
