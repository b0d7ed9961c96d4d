"""Metrics as servers declare and count them, and as Prometheus reads them."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sbp_core.admin.exposition import Exposition
from sbp_core.server.metrics import SECONDS, Catalog, Histogram, RequestTimes
from sbp_core.server.quotas import Quotas
from sbp_core.settings.quota_settings import rules_of
from sbp_core.wire.opcodes import Opcode

CATALOG = Catalog()
HITS = CATALOG.counter("x_hits_total", "Hits.", "name")
LEVEL = CATALOG.gauge("x_level", "A level.")
TIMES = CATALOG.histogram("x_seconds", "Times.", "name")


def parsed(readings, catalog=CATALOG):
    page = Exposition([catalog]).render(readings).decode()
    return {each.name: each for each in text_string_to_metric_families(page)}


@given(st.lists(st.floats(0, 100), max_size=50))
def test_a_histogram_counts_each_value_up_to_all_bounds_above_it(values):
    histogram = Histogram(SECONDS)
    for each in values:
        histogram.add(each)
    samples = parsed([TIMES.of(histogram, "a")])["x_seconds"].samples
    buckets = {each.labels["le"]: each.value for each in samples if each.name.endswith("_bucket")}
    assert len(buckets) == len(SECONDS) + 1
    for bound, counted in buckets.items():
        assert counted == sum(each <= float(bound) for each in values)
    totals = {each.name: each.value for each in samples if "le" not in each.labels}
    assert totals == {"x_seconds_count": len(values), "x_seconds_sum": histogram.total}


def test_a_reading_does_not_change_with_what_it_was_read_from():
    histogram = Histogram(SECONDS)
    reading = TIMES.of(histogram, "a")
    histogram.add(1.0)
    assert reading.value.count == 0


@given(st.text())
def test_labels_may_have_any_text(text):
    (sample,) = parsed([HITS.of(7, text)])["x_hits"].samples
    assert (sample.name, sample.labels, sample.value) == ("x_hits_total", {"name": text}, 7)


def test_a_metric_without_a_series_is_there():
    found = parsed([])
    assert {"x_hits", "x_level", "x_seconds"} < found.keys()
    assert found["x_level"].documentation == "A level."
    assert found["x_level"].samples == []


def test_operations_that_nobody_asked_for_are_left_out():
    times = RequestTimes()
    times.add(Opcode.APPEND, 0.002)
    times.add_failed(Opcode.APPEND, 0.1)
    times.add_failed(12345, 0.1)  # an opcode that no server knows
    found = {(each.metric.name, each.labels): each.value for each in times.read("r")}
    assert found.keys() == {
        ("sbp_request_seconds", ("r", "append")),
        ("sbp_request_failures_total", ("r", "append")),
    }
    assert found["sbp_request_failures_total", ("r", "append")] == 1
    assert found["sbp_request_seconds", ("r", "append")].count == 2


def test_identities_above_their_quota_are_counted_until_they_may_go_on():
    now = [0.0]
    rules = rules_of({"etl": {"requests_per_s": 10}})
    quotas = Quotas(lambda: now[0], lambda: rules)
    quotas.meter_of("other").charge_request(1, now[0])
    meter = quotas.meter_of("etl")
    while not meter.wait_seconds(now[0]):
        assert quotas.over_count == 0
        meter.charge_request(1, now[0])
    assert quotas.over_count == 1
    now[0] += 10
    assert quotas.over_count == 0
