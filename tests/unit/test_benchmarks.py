"""The parts of the benchmarks that need neither Spark nor a server."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks import __main__ as command
from benchmarks import delays, headers, load, report, sources, typed
from benchmarks.flights import read_flights
from benchmarks.isolation import Side
from benchmarks.memory import Sampler, summarize
from benchmarks.scenarios import SCENARIOS
from benchmarks.sources import ROWS_PER_BATCH_MAX as ROWS_PER_BATCH
from benchmarks.sources import Shape
from sbp_core import limits
from sbp_core.wire.checksum import crc32
from sbp_core.wire.frame import FrameDecoder
from sbp_core.wire.headers import AppendRequest, decode_header
from sbp_spark.schema import source_arrow_schema, source_schema

MIB = 1024 * 1024
USUAL = [*SCENARIOS, *typed.CHOICES, *delays.CHOICES]


def one_rate(**changes):
    given = {"rows": 1_000_000, "payload_bytes": 100_000_000, "seconds": [2.0, 4.0, 5.0]}
    given |= {"ceiling_seconds": [1.0, 1.0, 4.0]} | changes
    return report.rate("batch-read", "in-memory source", **given)


class TestShape:
    def test_options_round_trip(self):
        shape = Shape(12, 100, ("a", "b.c"))
        options = shape.to_options()
        assert all(isinstance(value, str) for value in options.values())
        assert Shape.from_options(options) == shape

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
        assert batch.schema.equals(source_arrow_schema(source_schema(include_headers=False)))
        assert set(batch.column("stream").to_pylist()) == {"a"}
        assert set(batch.column("stream_id").to_pylist()) == {3}
        assert set(pc.binary_length(batch.column("value")).to_pylist()) == {100}
        assert len(set(batch.column("value").to_pylist())) == ROWS_PER_BATCH
        assert batch.column("timestamp")[0].as_py().year == 2023

    def test_batches_of_large_values_have_fewer_rows(self):
        assert Shape(1, 100, ("a",)).rows_per_batch == ROWS_PER_BATCH
        assert Shape(1, 1024, ("a",)).rows_per_batch == 1024
        assert Shape(1, 4 * MIB, ("a",)).rows_per_batch == 1

    def test_they_are_built_once(self):
        first, second = sources.read_portion(portion(2 * ROWS_PER_BATCH))
        assert first is second


class TestRate:
    def test_the_ratio_is_the_median_of_the_rounds_not_of_the_sides(self):
        rate = one_rate()
        assert rate.ratio == pytest.approx(0.5)
        assert (rate.ratio_low, rate.ratio_high) == (pytest.approx(0.25), pytest.approx(0.8))

    def test_rates_come_from_the_median_time(self):
        rate = one_rate()
        assert rate.rows_per_s == pytest.approx(250_000)
        assert rate.payload_mb_per_s == pytest.approx(25)
        assert rate.ceiling_rows_per_s == pytest.approx(1_000_000)

    def test_a_faster_connector_has_a_ratio_above_one(self):
        assert one_rate(seconds=[1.0], ceiling_seconds=[3.0]).ratio == pytest.approx(3)

    def test_rounds_without_a_partner_are_refused(self):
        with pytest.raises(ValueError, match="shorter"):
            one_rate(seconds=[1.0, 2.0], ceiling_seconds=[1.0])


class TestLatency:
    def test_percentiles_of_all_records_and_the_median_of_the_rounds(self):
        seconds = [number / 1000 for number in range(100, 0, -1)]
        found = report.latency(
            "alone",
            append_seconds=[0.5],
            seconds=seconds,
            octets_per_s=[9e6, 1e6, 2e6],
        )
        assert found == report.Latency("alone", 500, 500, 51, 100, 100, 2)

    def test_what_a_side_replaces_are_limits_of_the_server(self):
        assert Side.FIRST_COME.bounds.keys() <= vars(limits).keys()
        assert Side.TURNS.bounds == {}


class TestTables:
    def test_rates(self):
        assert report.rate_table([one_rate()]).splitlines() == [
            "scenario     rows/s  MB/s  ceiling           its rows/s  ratio        spread",
            "----------  -------  ----  ----------------  ----------  -----  ------------",
            "batch-read  250,000    25  in-memory source   1,000,000   0.50  0.25 to 0.80",
        ]

    def test_memory(self):
        memory = report.Memory("write", "server", start_mib=50.4, peak_mib=1234, end_mib=60)
        assert report.memory_table([memory]).splitlines() == [
            "step   resident memory of  start MiB  peak MiB  growth MiB  end MiB",
            "-----  ------------------  ---------  --------  ----------  -------",
            "write  server                     50     1,234       1,184       60",
        ]

    def test_latencies(self):
        latency = report.Latency("by turns", 1, 2, 3, 45.25, 67, 1234)
        assert report.latency_table([latency]).splitlines() == [
            "reads are served  append p50 ms  append p99 ms  p50 ms  p99 ms  max ms  catch-up MB/s",
            "----------------  -------------  -------------  ------  ------  ------  -------------",
            "by turns                    1.0            2.0     3.0    45.2    67.0          1,234",
        ]

    def test_headers(self):
        cost = report.HeaderCost("FetchRequest", 1000, 72_016, encode_us=4000.4, decode_us=5000)
        assert report.header_table([cost]).splitlines() == [
            "header        items  octets  encode us  decode us  both us",
            "------------  -----  ------  ---------  ---------  -------",
            "FetchRequest  1,000  72,016      4,000      5,000    9,000",
        ]


class TestHeaders:
    def test_every_item_is_in_the_header(self):
        for header in headers.headers(7):
            (items,) = (
                content
                for field in fields(header)
                if isinstance(content := getattr(header, field.name), tuple)
            )
            assert len(set(items)) == 7

    def test_costs_are_told_for_every_header_and_count(self, monkeypatch):
        monkeypatch.setattr(headers, "ROUND_SECONDS", 0)
        monkeypatch.setattr(headers, "ROUNDS", 1)
        costs = headers.measure()
        assert [cost.items for cost in costs] == [1] * 4 + [10] * 4 + [1000] * 4
        assert len({(cost.header, cost.items) for cost in costs}) == 12
        assert all(cost.octets > 16 * cost.items for cost in costs)


class TestMemory:
    def test_first_highest_and_last_of_each_process(self):
        samples = [
            {"server": 10 * MIB, "Java": 5 * MIB},
            {"server": 40 * MIB, "Java": 4 * MIB},
            {"server": 30 * MIB, "Java": 3 * MIB},
        ]
        assert summarize("write", samples) == [
            report.Memory("write", "server", start_mib=10, peak_mib=40, end_mib=30),
            report.Memory("write", "Java", start_mib=5, peak_mib=5, end_mib=3),
        ]

    def test_the_sampler_looks_before_and_after_however_short_the_work(self):
        readings = iter(range(100))
        with Sampler(lambda: {"server": next(readings)}, interval_s=3600) as sampler:
            pass
        assert sampler.samples == [{"server": 0}, {"server": 1}]


class TestArguments:
    def test_defaults(self):
        settings = command.parse_arguments([])
        assert settings.rows == 4_000_000
        assert settings.only == USUAL

    def test_larger_values_mean_fewer_rows(self):
        assert command.parse_arguments(["--values", "1000"]).rows == 400_000
        assert command.parse_arguments(["--values", "1000", "--rows", "7"]).rows == 7

    def test_memory_comes_on_top_and_last(self):
        assert command.parse_arguments(["--memory"]).only == [*USUAL, "memory"]
        assert command.parse_arguments(["--memory"]).memory == [1024]
        assert command.parse_arguments(["--memory", "512", "--memory", "4096"]).memory == [
            512,
            4096,
        ]

    def test_isolation_is_asked_for(self):
        assert command.parse_arguments(["--isolation"]).isolation
        assert not command.parse_arguments([]).isolation

    def test_headers_alone(self):
        assert command.parse_arguments(["--headers"]).only == ["headers"]
        assert command.parse_arguments(["--only", "headers"]).only == ["headers"]

    def test_nothing_is_moved_in_spark_for_headers(self, tmp_path):
        settings = command.parse_arguments(["--headers"])
        assert command.measure_in_spark(settings, Shape(1, 1, ("a",)), tmp_path) == command.Found()

    def test_only_keeps_the_usual_order(self):
        arguments = ["--only", "memory", "--only", "batch-read"]
        assert command.parse_arguments(arguments).only == ["batch-read", "memory"]

    @pytest.mark.parametrize(
        "arguments", [["--rows", "0"], ["--rounds", "x"], ["--only", "nothing"], ["--values", "-1"]]
    )
    def test_nonsense_is_refused(self, arguments, capsys):
        with pytest.raises(SystemExit) as exit_:
            command.parse_arguments(arguments)
        assert exit_.value.code == 2
        assert arguments[0] in capsys.readouterr().err


class TestDelays:
    def test_a_ratio_above_one_is_slower(self):
        found = delays.delay("micro-batch", [0.2, 0.3, 0.9], "idle", [0.1, 0.1, 0.9])
        assert (found.ratio, found.ratio_low, found.ratio_high) == (2, 1, pytest.approx(3))
        assert (found.ms, found.baseline_ms) == (300, 100)
        assert "micro-batch" in delays.table([found])


class TestTyped:
    def test_a_ratio_below_one_says_that_columns_are_smaller(self):
        assert typed.size_table([typed.Size("zstd", 20, 40)]).splitlines() == [
            "batchCompression  columns B/row  JSON B/row  ratio",
            "----------------  -------------  ----------  -----",
            "zstd                       20.0        40.0   0.50",
        ]

    def test_flights_have_types_and_gaps(self):
        flights = read_flights()
        assert flights.num_rows == 336_776
        assert flights.schema.field("time_hour").type == pa.timestamp("us", "UTC")
        assert flights.schema.field("dep_delay").type == pa.int32()
        assert flights["dep_delay"].null_count == 8_255
        assert flights["tailnum"].null_count == 2_512


class TestFiles:
    def test_results_hold_everything(self, tmp_path):
        path = tmp_path / "results.json"
        report.write_json(
            path,
            settings={"rows": 5},
            surroundings={"cpu_count": 2},
            rates=[one_rate()],
            peer=[{"scenario": "kafka-batch-read", "absent": "no network"}],
            typed=[asdict(typed.Size("none", 95, 320))],
            delays=delays.to_json([delays.delay("micro-batch", [0.2], "idle", [0.1])]),
            memories=[report.Memory("write", "server", 1, 2, 3)],
            headers=[report.HeaderCost("FetchRequest", 10, 700, 40, 50)],
        )
        content = json.loads(path.read_text())
        assert content["settings"] == {"rows": 5}
        assert content["environment"] == {"cpu_count": 2}
        assert content["rates"][0]["seconds"] == [2.0, 4.0, 5.0]
        assert content["peer"] == [{"scenario": "kafka-batch-read", "absent": "no network"}]
        assert content["typed"] == [{"compression": "none", "columns_bytes": 95, "json_bytes": 320}]
        assert content["delays"][0]["ratio"] == 2
        assert content["memory"][0]["peak_mib"] == 2
        assert content["headers"][0]["decode_us"] == 50

    def test_the_environment_is_told_and_leaves_nothing_behind(self, tmp_path):
        told = report.environment(tmp_path)
        assert {"cpu_count", "kernel", "python", "spark", "pyarrow"} < set(told)
        assert told["disk_write_mb_per_s"] > 0
        assert list(tmp_path.iterdir()) == []

    def test_the_picture_is_a_picture(self, tmp_path):
        path = report.maybe_draw(tmp_path / "results.png", [one_rate()], title="x")
        assert path is not None
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_no_picture_without_matplotlib(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        assert report.maybe_draw(tmp_path / "results.png", [one_rate()], title="x") is None
        assert "matplotlib" in capsys.readouterr().err

    def test_no_picture_of_nothing(self, tmp_path):
        assert report.maybe_draw(tmp_path / "results.png", [], title="x") is None
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
