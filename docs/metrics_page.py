"""The page of the metrics, from their declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from status_codes import NOTICE, table

from sbp_core.admin import pages
from sbp_core.lake import metrics as lake
from sbp_core.pd import driver_metrics as driver
from sbp_core.rangeserver import observing as range_server
from sbp_core.server import metrics
from sbp_core.server.metrics import Catalog

_INTRODUCTION: Final = """\
# Metrics

`/metrics` of a server with an [admin port](../how-to/watch-servers.md) has these, in the text
format of Prometheus, and `process_*`, which are those of the process. Counters begin with 0 when
the process starts. `role` is `placement_driver` or `range_server`; `sbp serve` with one range
server has both. `sbp lake` has `sbp_info`, `sbp_ready`, `sbp_loop_delay_seconds` and those below
[Lake](#lake).
"""

_SECTIONS: Final[Mapping[str, Catalog]] = {
    "Every server": Catalog([*pages.METRICS, *metrics.COMMON]),
    "Placement driver": driver.METRICS,
    "Range server": range_server.METRICS,
    "Lake": lake.METRICS,
}


def _rows(catalog: Catalog) -> Iterator[list[str]]:
    for each in catalog:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield [f"`{each.name}`", each.kind.value, labels or "-", each.doc]


def metrics_document() -> str:
    """Return the page."""
    lines = [NOTICE, _INTRODUCTION]
    for title, catalog in _SECTIONS.items():
        rows = table(["metric", "type", "labels", "meaning"], list(_rows(catalog)))
        lines += [f"## {title}", "", *rows, ""]
    return "\n".join(lines)
