"""The peer of the benchmarks: what needs neither the network nor Kafka."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict

import pytest

from benchmarks import __main__ as command
from benchmarks.peer import broker, measure
from benchmarks.peer.jars import (
    REPOSITORY_DEFAULT,
    REPOSITORY_VARIABLE,
    Jar,
    PeerAbsentError,
    Pinned,
    ensure_jars,
    parse_jars,
)
from benchmarks.peer.latency import Arrivals
from benchmarks.peer.measure import Peer
from benchmarks.peer.report import Absent, compare, compare_waits, tables
from benchmarks.scenarios import SCENARIOS
from benchmarks.sources import Shape

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
        (file,) = ensure_jars([JAR], tmp_path / "cache", tell=told.append)
        assert file.read_bytes() == CONTENT
        repository.unlink()
        assert ensure_jars([JAR], tmp_path / "cache", tell=told.append) == (file,)
        assert told == ["fetching jar 1 of 1: a_2.13-1.0.jar"]
        assert [*(tmp_path / "cache").iterdir()] == [file]

    def test_a_damaged_one_is_fetched_again(self, tmp_path, repository):
        (file,) = ensure_jars([JAR], tmp_path / "cache", tell=print)
        file.write_bytes(b"half")
        ensure_jars([JAR], tmp_path / "cache", tell=print)
        assert file.read_bytes() == CONTENT

    def test_another_file_is_refused_and_not_kept(self, tmp_path, repository):
        repository.write_bytes(b"another jar")
        with pytest.raises(PeerAbsentError, match="SHA-256"):
            ensure_jars([JAR], tmp_path / "cache", tell=print)
        assert [*(tmp_path / "cache").iterdir()] == []

    def test_one_that_is_not_there_means_no_peer(self, tmp_path, repository):
        repository.unlink()
        with pytest.raises(PeerAbsentError, match=r"a_2\.13-1\.0\.jar"):
            ensure_jars([JAR], tmp_path / "cache", tell=print)


class TestAbsence:
    def test_no_repository_means_no_peer_and_says_why(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv(REPOSITORY_VARIABLE, (tmp_path / "nowhere").as_uri())
        peer = Peer.find(tell=lambda _: None)
        assert peer.connector_jars == ()
        assert "nowhere" in peer.absent
        assert peer.name == f"Kafka {Pinned.load().broker_version}"

    def test_every_scenario_is_then_reported_as_absent(self, tmp_path):
        peer = Peer("Kafka 1.0", absent="no network")
        for name in measure.CHOICES:
            found = peer.measure(None, name, Shape(1, 1, ("a",)), 1, folder=tmp_path, tell=print)
            assert found == Absent(name, "Kafka 1.0", "no network")

    def test_a_broker_that_ends_at_once_is_absent(self, tmp_path, monkeypatch):
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho no such class\nexit 1\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with (
            pytest.raises(PeerAbsentError, match="no such class"),
            broker.open_broker(tmp_path / "broker", ()),
        ):
            pass

    def test_the_table_and_the_file_have_no_figures_for_it(self):
        absent = Absent("kafka-batch-read", "Kafka 1.0", "no network")
        assert tables([absent]) == "kafka-batch-read: Kafka 1.0 is absent: no network"
        assert json.loads(json.dumps(asdict(absent))) == {
            "scenario": "kafka-batch-read",
            "peer": "Kafka 1.0",
            "absent": "no network",
        }


class TestFigures:
    def test_a_ratio_below_one_says_that_the_peer_is_faster(self):
        found = compare(
            "kafka-batch-read",
            "Kafka",
            rows=1_000_000,
            payload_bytes=100_000_000,
            seconds=[2.0, 4.0, 5.0],
            peer_seconds=[1.0, 1.0, 4.0],
        )
        assert (found.ratio, found.ratio_low, found.ratio_high) == (0.5, 0.25, 0.8)
        assert (found.rows_per_s, found.payload_mb_per_s) == (250_000, 25)
        assert (found.peer_rows_per_s, found.peer_payload_mb_per_s) == (1_000_000, 100)
        assert "0.25 to 0.80" in tables([found])

    def test_records_are_compared_within_their_round(self):
        found = compare_waits("kafka-latency", "Kafka", [[0.1] * 3, [0.4]], [[0.2] * 3, [0.2]])
        assert (found.ratio, found.ratio_low, found.ratio_high) == (1.25, 0.5, 2)
        assert (found.p50_ms, found.p99_ms) == (100, 400)
        assert (found.peer_p50_ms, found.peer_p99_ms) == (200, 200)
        assert "kafka-latency" in tables([found])

    def test_what_was_found_and_what_was_not_stand_together(self):
        rate = compare("a", "Kafka", rows=1, payload_bytes=1, seconds=[1.0], peer_seconds=[1.0])
        assert tables([rate, Absent("b", "Kafka", "why")]).endswith("\n\nb: Kafka is absent: why")

    def test_rounds_without_a_partner_are_refused(self):
        with pytest.raises(ValueError, match="shorter"):
            compare("a", "b", rows=1, payload_bytes=1, seconds=[1.0], peer_seconds=[])


class TestRounds:
    def test_sides_run_in_turn_and_warm_ups_do_not_count(self):
        runs = []

        def side(name):
            runs.append(name)
            return [float(len(runs))]

        sides = {"a": lambda: side("a"), "b": lambda: side("b")}
        found = measure._in_turn(sides, 2, tell=lambda _: None)
        assert runs == ["a", "b"] * (measure.WARM_UPS + 2)
        first = 2 * measure.WARM_UPS + 1
        assert found == {"a": [[first], [first + 2]], "b": [[first + 1], [first + 3]]}


class TestScenarios:
    def test_each_has_a_scenario_of_the_connector(self):
        for scenario in measure.SCENARIOS.values():
            assert scenario.ours in SCENARIOS.values()
            assert scenario.name.startswith(f"kafka-{scenario.ours.name}")

    def test_they_are_asked_for(self):
        assert command.parse_arguments(["--kafka"]).only == [*measure.CHOICES]
        assert not set(command.parse_arguments([]).only) & {*measure.CHOICES}
        arguments = ["--kafka", "--only", "batch-read"]
        assert command.parse_arguments(arguments).only == ["batch-read", *measure.CHOICES]


class TestBroker:
    def test_it_listens_here_only_and_keeps_everything_below_its_folder(self, tmp_path):
        settings = broker.broker_settings(tmp_path, port=1, controller_port=2)
        assert settings["log.dirs"].startswith(str(tmp_path))
        assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"

    def test_it_syncs_as_kafka_does_by_default(self, tmp_path):
        settings = broker.broker_settings(tmp_path, port=1, controller_port=2)
        assert not [name for name in settings if "flush" in name or "compression" in name]


def test_arrivals_are_complete_with_the_last_record():
    class Batch:
        def __init__(self, *values):
            self.values = values

        def select(self, _column):
            return self

        def collect(self):
            return [type("Row", (), {"value": value}) for value in self.values]

    arrivals = Arrivals(3)
    arrivals.take(Batch(b"2 ..", b"0 .."), 0)
    assert not arrivals.are_complete.is_set()
    arrivals.take(Batch(b"1 .."), 1)
    assert arrivals.are_complete.is_set()
    first, second, third = arrivals.seconds
    assert first == third < second
