"""The benchmarks: every module imports, arguments parse, and reports compute the right figures."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from dataclasses import replace

import pytest

import benchmarks
from benchmarks import __main__ as command
from benchmarks.core import headers, isolation, load
from benchmarks.core.soak import records
from benchmarks.core.soak.cluster import longest_pause
from benchmarks.core.soak.report import Records, Result
from benchmarks.core.soak.sampling import APPENDED_BYTES, Look, Process, Usage, totals
from benchmarks.core.soak.verdict import judge
from benchmarks.harness.interleave import in_turn
from benchmarks.harness.model import Case, Measure, Outcome, Ratio, Series, Shape
from benchmarks.harness.plots import draw
from benchmarks.harness.processor import processor_seconds, since
from benchmarks.harness.results import write_results
from benchmarks.harness.tables import show
from benchmarks.peer.jars import REPOSITORY_VARIABLE, Jar, PeerAbsentError, ensure_jars
from benchmarks.scenarios.memory import highest
from benchmarks.systems import sources

MILLION = Shape(1_000_000, 100, ("a", "b"))
READ = Case("batch-read", Measure.RATE, MILLION)
SERVER = Process("range-server-1", 17)


def test_every_module_imports_and_its_arguments_parse(capsys):
    names = [each.name for each in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
    modules = [importlib.import_module(name) for name in names]
    assert len(modules) > 50
    for module in modules:
        if "arguments" not in inspect.signature(getattr(module, "main", len)).parameters:
            continue
        with pytest.raises(SystemExit) as help_:
            module.main(["--help"])
        with pytest.raises(SystemExit) as refusal:
            module.main(["--no-such-option"])
        assert (help_.value.code, refusal.value.code) == (0, 2), module.__name__
    assert "--no-such-option" in capsys.readouterr().err


def chosen(*arguments):
    return command.jobs(command.parse_arguments(arguments))


def test_arguments_choose_scenarios_and_shapes():
    usual, full = chosen(), chosen("--full")
    assert set(usual) < set(full)
    assert {job.scenario.name for job in full} == {*command.SCENARIOS}
    names = [job.scenario.name for job in chosen("--only", "latency", "--only", "empty-read")]
    assert names == ["empty-read", "latency"]
    (job,) = chosen("--only", "batch-read", "--values", "1024", "--times", "3")
    assert (job.shape.value_bytes, job.shape.rows) == (1024, 3 * (400_000_000 // 1024))


@pytest.mark.parametrize("arguments", [["--times", "0"], ["--only", "nothing"], ["--values", "-1"]])
def test_arguments_out_of_range_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        command.parse_arguments(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_each_stream_gets_an_even_portion_of_the_rows():
    for rows in (0, 1, 10, 100_001):
        portions = sources.portions(Shape(rows, 7, ("a", "b", "c")), 0, rows)
        sizes = [portion.rows for portion in portions]
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1


def outcome(case=READ, *, kafka=((1.0,), (1.0,), (4.0,)), absent=""):
    ours = Series("sbp", ((2.0,), (4.0,), (5.0,)))
    return Outcome(case, (ours, Series("kafka", () if absent else kafka, absent)))


def test_the_ratio_is_the_median_of_the_rounds():
    found = outcome()
    assert found.ratio(found.series[1]) == Ratio(0.5, 0.25, 0.8)
    faster = outcome(kafka=((6.0,), (12.0,), (15.0,)))
    assert faster.ratio(faster.series[1]) == Ratio(3, 3, 3)
    assert [outcome(absent="x").ratio(each) for each in outcome(absent="x").series] == [None, None]


def test_percentiles_are_of_all_numbers_and_the_typical_round_is_the_median():
    numbers = tuple(float(number) for number in range(100))
    series = Series("sbp", (numbers[:50], numbers[50:]))
    assert [series.percentile(percent) for percent in (0, 50, 99, 100)] == [0, 50, 99, 99]
    assert Series("sbp", ((1.0, 2.0, 9.0), (5.0,), (6.0,))).typical == 5


def test_systems_run_in_turn_and_only_a_peer_may_fail():
    runs = []

    def run(name, *, fails=False):
        runs.append(name)
        if fails:
            raise TimeoutError(f"{name} is late")
        return [float(len(runs))]

    systems = {"sbp": lambda: run("sbp"), "x": "away", "kafka": lambda: run("kafka")}
    found = in_turn(READ, systems, rounds=2, warm_ups=1, report=lambda _: None)
    assert runs == ["sbp", "kafka"] * 3
    ours, away, theirs = found.series
    assert (ours.rounds, away.absent, theirs.rounds) == (((3.0,), (5.0,)), "away", ((4.0,), (6.0,)))
    systems["kafka"] = lambda: run("kafka", fails=True)
    found = in_turn(READ, systems, rounds=1, warm_ups=0, report=lambda _: None)
    assert found.series[2].rounds == ()
    assert found.series[2].absent.endswith("TimeoutError: kafka is late")
    with pytest.raises(TimeoutError, match="sbp"):
        in_turn(
            READ,
            {"sbp": lambda: run("sbp", fails=True)},
            rounds=1,
            warm_ups=0,
            report=lambda _: None,
        )


def test_tables_show_rates_delays_and_sizes():
    ours, theirs = show([outcome()]).splitlines()[2:]
    assert ours.split()[3:] == ["1,000,000", "sbp", "250,000", "25", "4.00"]
    assert theirs.split()[4:8] == ["kafka", "1,000,000", "100", "1.00"]
    assert theirs.endswith("0.50  0.25 to 0.80")
    delays = show([outcome(replace(READ, measure=Measure.DELAY))]).splitlines()[2]
    assert delays.split()[-3:] == ["4,000.0", "5,000.0", "5,000.0"]
    sizes = Outcome(replace(READ, measure=Measure.BYTES), (Series("sbp", ((20e6,),)),))
    assert show([sizes]).split()[-2:] == ["19.1", "20.0"]
    memory = Outcome(replace(READ, measure=Measure.MEMORY), (Series("sbp", ((20e6,),)),))
    assert show([memory]).split()[-1] == "19"
    absent = show([outcome(absent="no network")])
    assert absent.endswith("\n\nkafka is absent: no network")


def test_the_processor_time_of_each_process_is_shown():
    spent = [
        {"Spark": at, "workers": 0.5, "server": 0, "driver": 0, "kernel": 0.2} for at in (1, 3)
    ]
    series = Series("sbp", ((2.0,), (4.0,)), processor=tuple(spent))
    shown = show([Outcome(READ, (series,))])
    assert shown.split()[-6:] == ["2.50", "2.00", "0.50", "0.00", "0.00", "0.20"]


def test_the_processor_time_of_this_process_is_counted():
    before = processor_seconds()
    while (found := since(before))["driver"] < 0.05:
        sum(range(100_000))
    assert found["Spark"] == 0


def test_results_hold_all_numbers(tmp_path):
    path = tmp_path / "results.json"
    write_results(path, settings={"rounds": 5}, environment={}, outcomes=[outcome()])
    (found,) = json.loads(path.read_text())["outcomes"]
    assert (found["scenario"], found["rows"], found["streams"]) == ("batch-read", 1_000_000, 2)
    assert found["systems"][0]["rounds"] == [[2.0], [4.0], [5.0]]
    assert found["systems"][1]["ratio"] == {"typical": 0.5, "low": 0.25, "high": 0.8}


def test_figures_are_drawn_for_the_scenarios_that_have_one(tmp_path):
    growing = [
        outcome(Case("backlog-read", Measure.RATE, replace(MILLION, rows=rows)))
        for rows in (1000, 2000)
    ]
    late = outcome(Case("latency", Measure.DELAY, MILLION))
    paths = draw(tmp_path, [outcome(absent="no network"), *growing, late])
    names = [path.name for path in paths]
    assert names == ["throughput.png", "latency.png", "growth-backlog-read.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_reports_of_the_core_benchmarks():
    waits = isolation.Waits(
        "by turns", Series("", ((0.001, 0.002),)), Series("", ((0.003, 0.067),)), 1234e6
    )
    row = isolation.show([waits]).splitlines()[2]
    assert row.split() == ["by", "turns", "2.0", "2.0", "67.0", "67.0", "67.0", "1,234"]
    cost = headers.HeaderCost("FetchRequest", 1000, 72_016, encode_us=4000.4, decode_us=5000)
    row = headers.show([cost]).splitlines()[2]
    assert row.split() == ["FetchRequest", "1,000", "72,016", "4,000", "5,000", "9,000"]
    answers = load.Answers(latencies=[number / 1000 for number in range(101)])
    assert [round(answers.latency_ms(percent)) for percent in (0, 50, 99)] == [0, 50, 99]
    samples = [{"server": 10, "Java": 5}, {"server": 40, "Java": 4}, {"server": 30, "Java": 3}]
    assert highest(samples) == {"server": 40, "Java": 5}


def test_the_soak_counts_lost_and_doubled_records():
    received = records.Received()
    assert [received.add(number) for number in (0, 2, 3, 1, 4)] == [True] * 5
    assert [received.add(number) for number in (0, 2, 4)] == [False] * 3
    looks = memory_looks(lambda _: 1)
    found = Records("orders", 0, 10, 8, 0), Records("copies", 0, 10, 10, 1)
    result = Result(looks, [], found, {}, "")
    assert result.faults == ["orders, writer 0: 2 lost", "copies, writer 0: 1 doubled"]
    assert "MISSED orders, writer 0: 2 lost" in result.show()
    held = Result(looks, [], (Records("orders", 0, 10, 10, 0),), {}, "")
    assert (held.faults, "all bars held" in held.show()) == ([], True)
    assert Result(looks, [], (), {}, "pd has ended").faults == ["pd has ended"]


def memory_looks(mib, *, process=SERVER, begin=0):
    """Half an hour of looks at a process, whose memory in MiB `mib` gives for each minute."""
    return [
        Look(1e6 + at, {process: Usage(0, 1024 * round(mib(at / 60)), 20, 5)}, {})
        for at in range(60 * begin, 1801, 5)
    ]


def test_the_soak_finds_a_slow_leak_and_nothing_else():
    (flat,) = judge(memory_looks(lambda minute: min(minute, 5) * 100))
    assert flat.faults == []
    (leak,) = judge(memory_looks(lambda minute: 100 + 2 * minute))
    assert leak.faults == ["memory +48 MiB"]
    assert leak.courses.anonymous.per_hour == pytest.approx(120, abs=2)
    restarted = memory_looks(lambda at: 4 * at, process=Process(SERVER.name, 18), begin=15)
    before = [look for look in memory_looks(lambda _: 200) if look.at_s < 1e6 + 900]
    assert [bool(each.faults) for each in judge([*before, *restarted])] == [False, True]


def test_the_soak_measures_pauses_and_adds_counters_of_all_processes():
    samples = [(0.0, (0, 0)), (1.0, (1, 0)), (2.0, (2, 1)), (3.0, (2, 2)), (5.0, (3, 3))]
    assert longest_pause(samples) == 3.0
    assert longest_pause([(0.0, (0,)), (1.0, (1,)), (9.0, (1,))]) == 8.0
    seen = [
        Look(at, {}, {Process("a", pid): {APPENDED_BYTES: count} if count else {}})
        for at, (pid, count) in enumerate([(1, 5.0), (1, 7.0), (1, 0), (2, 4.0)])
    ]
    assert totals(seen)[APPENDED_BYTES] == 11


def test_a_jar_with_another_checksum_is_refused(tmp_path, monkeypatch):
    jar = Jar("org.example", "a", "1.0", "0" * 64)
    file = tmp_path / "org/example/a/1.0/a-1.0.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"another jar")
    monkeypatch.setenv(REPOSITORY_VARIABLE, tmp_path.as_uri())
    with pytest.raises(PeerAbsentError, match="SHA-256"):
        ensure_jars([jar], tmp_path / "cache", report=print)
    assert [*(tmp_path / "cache").iterdir()] == []
