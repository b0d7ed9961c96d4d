"""The parts of the benchmarks that need neither Spark nor a server."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks import __main__ as command
from benchmarks.core import headers, isolation, load
from benchmarks.harness.environment import environment
from benchmarks.harness.interleave import in_turn
from benchmarks.harness.model import Case, Measure, Outcome, Ratio, Series, Shape
from benchmarks.harness.plots import draw
from benchmarks.harness.results import write_results
from benchmarks.harness.sampler import Sampler
from benchmarks.harness.tables import show
from benchmarks.scenarios.catalogue import SCENARIOS
from benchmarks.scenarios.flights import read_flights
from benchmarks.scenarios.latency import Arrivals
from benchmarks.scenarios.memory import highest
from benchmarks.systems import opening, sources
from benchmarks.systems.sources import ROWS_PER_BATCH_MAX as ROWS_PER_BATCH
from benchmarks.systems.sources import rows_per_batch, shape_of, shape_options
from sbp_core import limits
from sbp_core.wire.checksum import crc32
from sbp_core.wire.frame import FrameDecoder
from sbp_core.wire.headers import AppendRequest, decode_header
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.row_schema import source_schema

MILLION = Shape(1_000_000, 100, ("a", "b"))
READ = Case("batch-read", Measure.RATE, MILLION)


def outcome(case=READ, *, kafka=((1.0,), (1.0,), (4.0,)), absent=""):
    ours = Series("sbp", ((2.0,), (4.0,), (5.0,)))
    return Outcome(case, (ours, Series("kafka", () if absent else kafka, absent)))


class TestShape:
    def test_options_round_trip(self):
        shape = Shape(12, 100, ("a", "b.c"))
        options = shape_options(shape)
        assert all(isinstance(value, str) for value in options.values())
        assert shape_of(options) == shape

    def test_payload_counts_the_values(self):
        assert Shape(1000, 100, ("a",)).payload_bytes == 100_000

    @pytest.mark.parametrize("rows", [0, 1, 2, 3, 10, 100_001])
    @pytest.mark.parametrize("streams", [("a",), ("a", "b"), ("a", "b", "c")])
    def test_each_stream_gets_an_even_portion(self, rows, streams):
        portions = sources.portions(Shape(rows, 7, streams), 0, rows)
        assert [portion.stream for portion in portions] == list(streams)
        sizes = [portion.rows for portion in portions]
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1

    def test_portions_of_an_interval_hold_its_rows_only(self):
        portions = sources.portions(Shape(100, 7, ("a", "b")), 90, 100)
        assert [portion.rows for portion in portions] == [5, 5]

    def test_two_tasks_share_many_streams(self):
        names = tuple("abcde")
        first, second = sources.works(Shape(50, 7, names), 0, 50)
        assert [each.stream for each in first.portions] == ["a", "b"]
        assert [each.stream for each in second.portions] == ["c", "d", "e"]
        batches = [*sources.read_work(first), *sources.read_work(second)]
        assert sum(batch.num_rows for batch in batches) == 50
        (only,) = sources.works(Shape(50, 7, ("a",)), 0, 50)
        assert [each.rows for each in only.portions] == [50]


def portion(rows, value_bytes=5):
    return sources.Portion("a", 3, rows, ROWS_PER_BATCH, value_bytes)


class TestPrebuiltBatches:
    @pytest.mark.parametrize(
        ("rows", "sizes"),
        [
            (0, []),
            (1, [1]),
            (ROWS_PER_BATCH, [ROWS_PER_BATCH]),
            (2 * ROWS_PER_BATCH + 1, [ROWS_PER_BATCH, ROWS_PER_BATCH, 1]),
        ],
    )
    def test_a_portion_yields_its_rows_in_full_batches(self, rows, sizes):
        batches = list(sources.read_portion(portion(rows)))
        assert [batch.num_rows for batch in batches] == sizes

    def test_they_are_what_spark_demands_of_the_connector(self):
        (batch,) = sources.read_portion(portion(ROWS_PER_BATCH, value_bytes=100))
        batch.validate(full=True)
        assert batch.schema.equals(logical_arrow_schema(source_schema(include_headers=False)))
        assert set(batch.column("stream").to_pylist()) == {"a"}
        assert set(batch.column("stream_id").to_pylist()) == {3}
        assert set(pc.binary_length(batch.column("value")).to_pylist()) == {100}
        assert len(set(batch.column("value").to_pylist())) == ROWS_PER_BATCH
        assert batch.column("timestamp")[0].as_py().year == 2023

    def test_batches_of_large_values_have_fewer_rows(self):
        assert rows_per_batch(Shape(1, 100, ("a",))) == ROWS_PER_BATCH
        assert rows_per_batch(Shape(1, 1024, ("a",))) == 1024
        assert rows_per_batch(Shape(1, 4 * limits.MIB, ("a",))) == 1

    def test_they_are_built_once(self):
        first, second = sources.read_portion(portion(2 * ROWS_PER_BATCH))
        assert first is second


class TestOutcome:
    def test_the_ratio_is_the_median_of_the_rounds_not_of_the_systems(self):
        found = outcome()
        assert found.ratio(found.series[1]) == Ratio(0.5, 0.25, 0.8)

    def test_a_faster_connector_has_a_ratio_above_one(self):
        found = outcome(kafka=((6.0,), (12.0,), (15.0,)))
        assert found.ratio(found.series[1]) == Ratio(3, 3, 3)

    def test_there_is_no_ratio_to_ourselves_or_to_who_is_absent(self):
        found = outcome(absent="no network")
        assert [found.ratio(series) for series in found.series] == [None, None]

    def test_rounds_without_a_partner_are_refused(self):
        found = outcome(kafka=((1.0,),))
        with pytest.raises(ValueError, match="shorter"):
            found.ratio(found.series[1])

    def test_percentiles_are_those_of_all_numbers(self):
        numbers = tuple(float(number) for number in range(100))
        series = Series("sbp", (numbers[:50], numbers[50:]))
        found = [series.percentile(percent) for percent in (0, 50, 99, 100)]
        assert found == [0, 50, 99, 99]

    def test_the_typical_round_counts_not_the_typical_number(self):
        assert Series("sbp", ((1.0, 2.0, 9.0), (5.0,), (6.0,))).typical == 5


class TestRounds:
    def test_systems_run_in_turn_and_warm_ups_do_not_count(self):
        runs = []

        def run(name):
            runs.append(name)
            return [float(len(runs))]

        told = []
        found = in_turn(
            READ,
            {"sbp": lambda: run("sbp"), "x": "away", "kafka": lambda: run("kafka")},
            rounds=2,
            warm_ups=1,
            report=told.append,
        )
        assert runs == ["sbp", "kafka"] * 3
        assert found.series == (
            Series("sbp", ((3.0,), (5.0,))),
            Series("x", absent="away"),
            Series("kafka", ((4.0,), (6.0,))),
        )
        assert told[0] == "warm-up: sbp 1.000 s, kafka 2.000 s"

    def test_a_side_that_fails_has_no_figures_and_the_others_continue(self):
        def fail():
            raise TimeoutError("Expiring 206 records\n at Sender.java")

        runs = {"sbp": lambda: [1.0], "kafka": fail, "ceiling": lambda: [2.0]}
        told = []
        found = in_turn(READ, runs, rounds=1, warm_ups=1, report=told.append)
        reason = f"failed in {READ.scenario} with {len(READ.shape.streams)} streams, TimeoutError"
        assert found.series == (
            Series("sbp", ((1.0,),)),
            Series("kafka", absent=f"{reason}: Expiring 206 records"),
            Series("ceiling", ((2.0,),)),
        )
        assert "TimeoutError" in told[0]
        assert told[1] == "round 1: sbp 1.000 s, ceiling 2.000 s"

    def test_our_own_failure_ends_the_run(self):
        def fail():
            raise TimeoutError("ours")

        with pytest.raises(TimeoutError, match="ours"):
            in_turn(READ, {"sbp": fail}, rounds=1, warm_ups=0, report=lambda _: None)


class TestTables:
    def test_rates(self):
        header, rule, ours, theirs = show([outcome()]).splitlines()
        assert header.split("  ")[-1].strip() == "spread"
        assert {*rule} == {"-", " "}
        assert ours.split()[3:] == ["1,000,000", "sbp", "250,000", "25", "4.00"]
        assert theirs.split()[4:8] == ["kafka", "1,000,000", "100", "1.00"]
        assert theirs.endswith("0.50  0.25 to 0.80")

    def test_delays_have_percentiles_in_milliseconds(self):
        line = show([outcome(replace(READ, measure=Measure.DELAY))]).splitlines()[2]
        assert line.split()[-3:] == ["4,000.0", "5,000.0", "5,000.0"]

    def test_sizes_are_reported_for_each_row_too(self):
        case = replace(READ, measure=Measure.BYTES, detail="zstd")
        found = Outcome(case, (Series("sbp", ((20e6,),)), Series("sbp JSON", ((40e6,),))))
        ours, theirs = show([found]).splitlines()[2:]
        assert ours.startswith("batch-read zstd")
        assert ours.split()[-2:] == ["19.1", "20.0"]
        assert theirs.split()[-4:] == ["2.00", "2.00", "to", "2.00"]

    def test_memory_is_reported_in_whole_mib(self):
        case = replace(READ, measure=Measure.MEMORY, detail="write: server")
        (line,) = show([Outcome(case, (Series("sbp", ((20e6,),)),))]).splitlines()[2:]
        assert line.split()[-3:] == ["1,000,000", "sbp", "19"]

    def test_an_absent_side_has_no_figures(self):
        text = show([outcome(absent="no network"), outcome(absent="no network")])
        assert text.endswith("\n\nkafka is absent: no network")
        assert text.count("kafka") == 1


class TestIsolation:
    def test_replaced_values_are_limits_of_the_server(self):
        assert isolation.Side.FIRST_COME.bounds.keys() <= vars(limits).keys()
        assert isolation.Side.TURNS.bounds == {}

    def test_waits_are_reported_in_milliseconds(self):
        waits = isolation.Waits(
            "by turns", Series("", ((0.001, 0.002),)), Series("", ((0.003, 0.067),)), 1234e6
        )
        assert isolation.show([waits]).splitlines() == [
            "reads are served  append p50 ms  append p99 ms  p50 ms  p99 ms  max ms  catch-up MB/s",
            "----------------  -------------  -------------  ------  ------  ------  -------------",
            "by turns                    2.0            2.0    67.0    67.0    67.0          1,234",
        ]


class TestHeaders:
    def test_every_item_is_in_the_header(self):
        for header in headers.headers(7):
            (items,) = (
                content
                for name in header.__struct_fields__
                if isinstance(content := getattr(header, name), tuple)
            )
            assert len(set(items)) == 7

    def test_they_are_shown_in_microseconds(self):
        cost = headers.HeaderCost("FetchRequest", 1000, 72_016, encode_us=4000.4, decode_us=5000)
        assert headers.show([cost]).splitlines() == [
            "header        items   bytes  encode us  decode us  both us",
            "------------  -----  ------  ---------  ---------  -------",
            "FetchRequest  1,000  72,016      4,000      5,000    9,000",
        ]

    def test_costs_are_reported_for_every_header_and_count(self):
        costs = headers.measure(headers.Rounds(count=1, seconds_min=0))
        assert [cost.items for cost in costs] == [1] * 4 + [10] * 4 + [1000] * 4
        assert len({(cost.header, cost.items) for cost in costs}) == 12
        assert all(cost.length_bytes > 16 * cost.items for cost in costs)


class TestMemory:
    def test_the_highest_of_each_process_counts(self):
        samples = [{"server": 10, "Java": 5}, {"server": 40, "Java": 4}, {"server": 30, "Java": 3}]
        assert highest(samples) == {"server": 40, "Java": 5}

    def test_the_sampler_looks_before_and_after_however_short_the_work(self):
        readings = iter(range(100))
        with Sampler(lambda: {"server": next(readings)}, interval_s=3600) as sampler:
            pass
        assert sampler.samples == [{"server": 0}, {"server": 1}]


def chosen(*arguments):
    return command.jobs(command.parse_arguments(arguments))


class TestArguments:
    def test_a_run_of_minutes_leaves_shapes_out(self):
        usual, full = chosen(), chosen("--full")
        assert set(usual) < set(full)
        assert {job.scenario.name for job in full} == {*SCENARIOS}
        assert {job.shape.value_bytes for job in usual if job.shape.rows > 10_000} == {100, 1024}

    def test_a_case_requested_by_name_has_all_its_shapes(self):
        assert len(chosen("--only", "backlog-read")) == 4

    def test_only_keeps_the_usual_order(self):
        names = [job.scenario.name for job in chosen("--only", "latency", "--only", "empty-read")]
        assert names == ["empty-read", "latency"]

    def test_values_choose_cases(self):
        found = chosen("--only", "batch-read", "--values", "1024", "--times", "3")
        assert [job.shape.value_bytes for job in found] == [1024]
        assert found[0].shape.rows == 3 * (400_000_000 // 1024)

    @pytest.mark.parametrize(
        "arguments",
        [["--times", "0"], ["--rounds", "x"], ["--only", "nothing"], ["--values", "-1"]],
    )
    def test_nonsense_is_refused(self, arguments, capsys):
        with pytest.raises(SystemExit) as exit_:
            command.parse_arguments(arguments)
        assert exit_.value.code == 2
        assert arguments[0] in capsys.readouterr().err


class TestCatalogue:
    def test_systems_are_known_and_ours_comes_first(self):
        for scenario in SCENARIOS.values():
            assert set(scenario.systems) <= set(opening.NAMES)
            assert scenario.systems[0] == "sbp"

    def test_every_scenario_has_rows_somewhere(self):
        for scenario in SCENARIOS.values():
            assert scenario.shapes or scenario.full_shapes


class TestFlights:
    def test_they_have_types_and_gaps(self):
        flights = read_flights()
        assert flights.num_rows == 336_776
        assert flights.schema.field("time_hour").type == pa.timestamp("us", "UTC")
        assert flights.schema.field("dep_delay").type == pa.int32()
        assert flights["dep_delay"].null_count == 8_255
        assert flights["tailnum"].null_count == 2_512


class TestFiles:
    def test_results_hold_all_numbers_and_what_they_depend_on(self, tmp_path):
        path = tmp_path / "results.json"
        found = [outcome(), outcome(absent="no network")]
        write_results(path, settings={"rounds": 5}, environment={"cpu_count": 2}, outcomes=found)
        content = json.loads(path.read_text())
        assert content["settings"] == {"rounds": 5}
        assert content["environment"] == {"cpu_count": 2}
        first, second = content["outcomes"]
        assert (first["scenario"], first["rows"], first["streams"]) == ("batch-read", 1_000_000, 2)
        assert first["systems"][0]["rounds"] == [[2.0], [4.0], [5.0]]
        assert first["systems"][1]["ratio"] == {"typical": 0.5, "low": 0.25, "high": 0.8}
        assert second["systems"][1]["absent"] == "no network"
        assert second["systems"][1]["ratio"] is None

    def test_the_environment_is_reported_and_leaves_nothing_behind(self, tmp_path):
        told = environment(tmp_path)
        assert {"cpu_count", "kernel", "python", "spark", "pyarrow"} < set(told)
        speeds = ("disk_write_mb_per_s", "loopback_mb_per_s", "new_memory_mb_per_s")
        assert min(told[speed] for speed in speeds) > 0
        assert list(tmp_path.iterdir()) == []

    def test_pictures_are_pictures(self, tmp_path):
        growing = [
            outcome(Case("backlog-read", Measure.RATE, replace(MILLION, rows=rows)))
            for rows in (1000, 2000)
        ]
        late = outcome(Case("latency", Measure.DELAY, MILLION))
        paths = draw(tmp_path, [outcome(absent="no network"), *growing, late])
        assert [path.name for path in paths] == [
            "throughput.png",
            "latency.png",
            "growth-backlog-read.png",
        ]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)

    def test_no_picture_without_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        assert draw(tmp_path, [outcome()]) == []

    def test_no_picture_of_nothing(self, tmp_path):
        assert draw(tmp_path, []) == []
        assert list(tmp_path.iterdir()) == []


def test_a_load_sends_the_appends_that_a_client_would():
    batch = b"a batch"
    heads = load.append_heads(7, batch, range(3))
    decoder = FrameDecoder()
    for head in heads:
        decoder.receive_data(head + batch + crc32([batch]).to_bytes(4, "big"))
    frames = list(decoder.frames())
    assert [frame.call_id for frame in frames] == [0, 1, 2]
    for frame in frames:
        assert bytes(frame.payload) == batch
        (info,) = decode_header(AppendRequest, frame.header).append_requests
        assert (info.stream_id, info.batch_length) == (7, len(batch))


def test_latencies_of_a_load():
    answers = load.Answers(latencies=[number / 1000 for number in range(101)])
    assert [round(answers.latency_ms(percent)) for percent in (0, 50, 99)] == [0, 50, 99]
    assert load.Answers().latency_ms(99) == 0


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
