"""The peer of the benchmarks: parts that need neither the network nor Kafka."""

from __future__ import annotations

import hashlib
import re
import struct

import pytest

from benchmarks.peer import broker, produce
from benchmarks.peer.jars import (
    REPOSITORY_DEFAULT,
    REPOSITORY_VARIABLE,
    Jar,
    PeerAbsentError,
    Pinned,
    ensure_jars,
    parse_jars,
)
from benchmarks.systems.ceiling import Ceiling
from benchmarks.systems.opening import CEILING, KAFKA, KAFKA_SYNCED, Peer, open_systems
from sbp_core.wire.checksum import crc32c

CONTENT = b"a jar"
JAR = Jar("org.example", "a_2.13", "1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository in a folder that has the jar; files are asked for as anything is."""
    root = tmp_path / "repository"
    file = root / "org/example/a_2.13/1.0/a_2.13-1.0.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    monkeypatch.setenv(REPOSITORY_VARIABLE, root.as_uri())
    return file


class TestPinned:
    def test_every_jar_has_a_sum_and_a_name_of_its_own(self):
        pinned = Pinned.load()
        for jars in (pinned.broker, pinned.connector):
            assert len({jar.file_name for jar in jars}) == len(jars)
            assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars)

    def test_broker_and_connector_agree_on_the_clients_and_on_scala(self):
        pinned = Pinned.load()
        (theirs,) = (jar for jar in pinned.broker if jar.artifact == "kafka-clients")
        assert theirs in pinned.connector
        assert theirs.version == pinned.broker_version
        assert {"spark-sql-kafka-0-10_2.13"} < {jar.artifact for jar in pinned.connector}

    def test_comments_and_empty_lines_are_no_jars(self):
        assert parse_jars(f"# a\n\n{JAR.sha256}  org.example:a_2.13:1.0\n") == (JAR,)

    @pytest.mark.parametrize(
        "line", ["org.example:a:1.0", "00 org.example:a", "00 a:b:c:d", "a b c"]
    )
    def test_other_lines_are_refused(self, line):
        with pytest.raises(ValueError, match="unpack"):
            parse_jars(line)

    def test_where_a_repository_has_it(self):
        expected = f"{REPOSITORY_DEFAULT}/org/example/a_2.13/1.0/a_2.13-1.0.jar"
        assert JAR.address(REPOSITORY_DEFAULT) == expected
        assert JAR.address(REPOSITORY_DEFAULT + "/") == expected


class TestJars:
    def test_they_are_fetched_once(self, tmp_path, repository):
        told = []
        (file,) = ensure_jars([JAR], tmp_path / "cache", report=told.append)
        assert file.read_bytes() == CONTENT
        repository.unlink()
        assert ensure_jars([JAR], tmp_path / "cache", report=told.append) == (file,)
        assert told == ["fetching jar 1 of 1: a_2.13-1.0.jar"]
        assert [*(tmp_path / "cache").iterdir()] == [file]

    def test_a_damaged_one_is_fetched_again(self, tmp_path, repository):
        (file,) = ensure_jars([JAR], tmp_path / "cache", report=print)
        file.write_bytes(b"half")
        ensure_jars([JAR], tmp_path / "cache", report=print)
        assert file.read_bytes() == CONTENT

    def test_another_file_is_refused_and_not_kept(self, tmp_path, repository):
        repository.write_bytes(b"another jar")
        with pytest.raises(PeerAbsentError, match="SHA-256"):
            ensure_jars([JAR], tmp_path / "cache", report=print)
        assert [*(tmp_path / "cache").iterdir()] == []

    def test_one_that_is_not_there_means_no_peer(self, tmp_path, repository):
        repository.unlink()
        with pytest.raises(PeerAbsentError, match=r"a_2\.13-1\.0\.jar"):
            ensure_jars([JAR], tmp_path / "cache", report=print)


class TestAbsence:
    def test_no_repository_means_no_peer_and_says_why(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv(REPOSITORY_VARIABLE, (tmp_path / "nowhere").as_uri())
        peer = Peer.find(report=lambda _: None)
        assert peer.connector_jars == ()
        assert "nowhere" in peer.absent
        assert peer.version == Pinned.load().broker_version

    def test_it_is_then_said_of_every_system_of_kafka(self, tmp_path):
        peer = Peer("1.0", absent="no network")
        with open_systems(None, tmp_path, [CEILING, KAFKA, KAFKA_SYNCED], peer) as systems:
            assert isinstance(systems[CEILING], Ceiling)
            assert {systems[KAFKA], systems[KAFKA_SYNCED]} == {"no network"}

    def test_a_broker_that_ends_at_once_is_absent(self, tmp_path, monkeypatch):
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho no such class\nexit 1\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with (
            pytest.raises(PeerAbsentError, match="no such class"),
            broker.open_brokers(tmp_path / "broker", ()),
        ):
            pass


class TestBroker:
    def test_it_listens_here_only_and_keeps_everything_below_its_folder(self, tmp_path):
        settings = broker.broker_settings(tmp_path, port=1, controller_ports=[2])
        assert settings["log.dirs"].startswith(str(tmp_path))
        assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"

    def test_it_syncs_as_kafka_does_by_default(self, tmp_path):
        settings = broker.broker_settings(tmp_path, port=1, controller_ports=[2])
        assert not [name for name in settings if "flush" in name or "compression" in name]

    def test_nodes_of_a_cluster_know_each_other(self, tmp_path):
        settings = [
            broker.broker_settings(tmp_path, port=node, controller_ports=[4, 5, 6], node=node)
            for node in (1, 2, 3)
        ]
        (voters,) = {each["controller.quorum.voters"] for each in settings}
        assert voters == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
        for node, each in enumerate(settings, start=1):
            assert each["node.id"] == str(node)
            listeners = f"PLAINTEXT://127.0.0.1:{node},CONTROLLER://127.0.0.1:{3 + node}"
            assert each["listeners"] == listeners


class TestAppends:
    """Layouts as in the protocol guide of Kafka: Produce version 3, record batch version 2."""

    def test_a_request_has_its_length_and_number_where_a_frame_has_them(self):
        head, tail = produce.encode_append("topic", b"value")
        assert int.from_bytes(head[:4], "big") == len(head) + len(tail) - 4
        assert head[8:] == bytes(4)

    def test_a_record_batch_is_intact_and_holds_the_value(self):
        value = b"v" * 300
        _, tail = produce.encode_append("topic", value)
        batch = tail[-(12 + 49 + 2 + 3 + 1 + 2 + len(value) + 1) :]
        length, magic, checksum = struct.unpack_from(">8xi4xbI", batch)
        assert length == len(batch) - 12
        assert magic == 2
        assert checksum == crc32c([batch[21:]])
        assert batch[-1 - len(value) : -1] == value

    @pytest.mark.parametrize("code", [0, 6, 19])
    def test_an_answer_says_whether_the_record_was_stored(self, code):
        partition = struct.pack(">iihqq", 1, 0, code, 5, -1)
        body = struct.pack(">ii", 7, 1) + struct.pack(">h", 5) + b"topic" + partition + bytes(4)
        assert produce.append_code(struct.pack(">i", len(body)) + body) == code
