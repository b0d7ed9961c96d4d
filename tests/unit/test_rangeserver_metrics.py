"""The figures of REPORT_METRICS, with the clock held still."""

from pathlib import Path

from sbp_core import limits
from sbp_core.rangeserver.server_load import HostProbe, Metrics
from sbp_core.wire.headers import RangeServer, decode_header, encode_header
from tests.support.clock import ManualClock

ME = RangeServer(3, "h:1")


def report(metrics, *, free=10, used=20):
    made = metrics.report(
        ME, disk_free_bytes=free, memory_used_bytes=used, unindexed_bytes=30, missing_replicas=2
    )
    assert decode_header(type(made), encode_header(made)) == made
    return made


def test_rates_are_those_since_the_last_report():
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.appends.add(20, 4, 3000, 0.010)
    metrics.fetches.add(6, 2, 800, 0.5)
    clock.advance(2000)
    made = report(metrics)
    assert (made.range_server, made.disk_free_space, made.memory_used) == (ME, 10, 20)
    assert made.disk_unindexed_data_size == 30
    assert (made.disk_in_rate, made.disk_out_rate) == (1500, 400)
    assert (made.network_append_rate, made.network_failed_append_rate) == (10, 2)
    assert (made.network_fetch_rate, made.network_failed_fetch_rate) == (3, 1)
    assert (made.uring_task_rate, made.uring_pending_task_cnt) == (0, 0)
    clock.advance(2000)
    quiet = report(metrics)
    assert (quiet.disk_in_rate, quiet.network_append_rate, quiet.network_fetch_rate) == (0, 0, 0)


def test_averages_and_activity_look_back_a_minute():
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.appends.add(1, 0, 1, 0.010)
    metrics.touch([(1, 0), (1, 1), (1, 0)])
    clock.advance(1000)
    assert report(metrics).range_active_cnt == 2
    metrics.appends.add(3, 0, 1, 0.050)
    metrics.touch([(2, 0)])
    clock.advance(1000)
    made = report(metrics)
    assert (made.network_append_avg_latency, made.network_fetch_avg_latency) == (40, 0)
    assert made.range_active_cnt == 3
    clock.advance(limits.METRICS_WINDOW_MS - 1000)
    made = report(metrics)
    assert (made.network_append_avg_latency, made.range_active_cnt) == (50, 1)
    clock.advance(2000)
    made = report(metrics)
    assert (made.network_append_avg_latency, made.range_active_cnt) == (0, 0)


def test_figures_stay_within_their_fields():
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.appends.add(10**9, 10**9, 10**30, 10**6)
    metrics.touch((1, index) for index in range(40_000))
    made = report(metrics, free=2**70, used=-5)
    assert made.network_append_rate == made.network_failed_append_rate == 2**15 - 1
    assert made.network_append_avg_latency == made.range_active_cnt == 2**15 - 1
    assert made.disk_in_rate == made.disk_free_space == 2**63 - 1
    assert made.memory_used == 0


def test_the_machine_is_asked():
    probe = HostProbe()
    assert probe.disk_free_bytes(Path("/")) > 0
    assert probe.memory_used_bytes() > limits.MIB
