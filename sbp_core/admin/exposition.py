"""`/metrics`: the readings of servers in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from sbp_core.server.metrics import Catalog, Histogram, Kind, Metric, Reading

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Exposition(Collector):
    """Renders the metrics of `catalogs` from the last readings, and the metrics of the process.

    A metric without a series is shown by its name and meaning only.
    """

    def __init__(self, catalogs: Sequence[Catalog]) -> None:
        self._metrics = [metric for catalog in catalogs for metric in catalog]
        self._readings: Sequence[Reading] = ()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, readings: Sequence[Reading]) -> bytes:
        """Return the page."""
        self._readings = readings
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Family]:
        """Return nothing: the names are checked where they are declared."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; called by the registry."""
        by_metric: dict[str, list[Reading]] = {each.name: [] for each in self._metrics}
        for reading in self._readings:
            by_metric[reading.metric.name].append(reading)
        for metric in self._metrics:
            yield _family(metric, by_metric[metric.name])


def _family(metric: Metric, readings: Iterable[Reading]) -> Family:
    name, doc, labels = metric.name, metric.doc, metric.labels
    if metric.kind is Kind.HISTOGRAM:
        histograms = HistogramMetricFamily(name, doc, labels=labels)
        for each in readings:
            assert isinstance(each.value, Histogram)
            histograms.add_metric(each.labels, _buckets(each.value), each.value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, doc, labels=labels)
    for each in readings:
        assert not isinstance(each.value, Histogram)
        family.add_metric(each.labels, each.value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return how many values there were up to each bound."""
    found, count = [], 0
    for bound, more in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += more
        found.append(("+Inf" if bound == float("inf") else repr(bound), float(count)))
    return found
