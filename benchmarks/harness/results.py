"""The file of results: everything that was measured, and where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.model import Outcome


def write_results(
    path: Path,
    *,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    outcomes: Sequence[Outcome],
) -> None:
    """Write all numbers of all rounds as JSON, with the ratios that the tables show."""
    content = {
        "settings": dict(settings),
        "environment": dict(environment),
        "outcomes": [_outcome(each) for each in outcomes],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _outcome(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "scenario": case.scenario,
        "detail": case.detail,
        "measure": case.measure.value,
        "rows": case.shape.rows,
        "value_bytes": case.shape.value_bytes,
        "streams": len(case.shape.streams),
        "systems": [
            {
                "name": series.system,
                "rounds": series.rounds,
                "core_seconds": series.processor,
                "absent": series.absent,
                "ratio": asdict(ratio) if (ratio := outcome.ratio(series)) else None,
            }
            for series in outcome.series
        ],
    }
