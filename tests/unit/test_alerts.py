"""The alert rules, by Prometheus itself: they are valid, and fire for what they are about."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ALERTS = Path(__file__).parents[2] / "conf" / "alerts.yml"
PROMTOOL = shutil.which("promtool")
"""A part of Prometheus: apt-get install prometheus."""
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")

CASES = {
    "SbpNoLeader": (
        {'sbp_pd_leader{instance="pd-1"}': "1x5 0x5", 'sbp_pd_leader{instance="pd-2"}': "0x10"},
        "5m",
        "7m",
    ),
    "SbpDiskFull24Hours": (
        {
            'sbp_disk_free_bytes{instance="node-1"}': "100000000000-60000000x480",
            'sbp_disk_free_floor_bytes{instance="node-1"}': "1000000000x480",
        },
        "1h",
        "8h",
    ),
    "SbpGroupLags": (
        {'sbp_group_lag_records{instance="pd-1",group="etl",stream="s"}': "0x60 2000000+1000x120"},
        "1h",
        "2h",
    ),
    "SbpCertificateExpires": (
        {'sbp_certificate_expiry_timestamp_seconds{instance="pd-1",file="a.pem"}': "608400x180"},
        "30m",
        "2h",
    ),
    "SbpGroupLagGrows": (
        {'sbp_group_lag_seconds{instance="pd-1",group="etl",stream="s"}': "0x60 0+60x120"},
        "80m",
        "2h",
    ),
    "SbpRetentionStalled": (
        {'sbp_retention_overdue_seconds{instance="node-1"}': "0x10 0+60x60"},
        "30m",
        "32m",
    ),
    "SbpStreamHasManyRanges": (
        {'sbp_stream_ranges{instance="pd-1",stream="s"}': "2000x30 2001x30"},
        "44m",
        "47m",
    ),
    "SbpRestarts": (
        {'process_start_time_seconds{job="sbp",instance="node-1"}': "1x60 2x5 3x5 4x30"},
        "71m",
        "73m",
    ),
    "SbpSlowCommits": (
        {
            'sbp_group_commit_seconds_bucket{instance="node-1",le="0.5"}': "0x10 0+10x30",
            'sbp_group_commit_seconds_bucket{instance="node-1",le="1.0"}': "0x10 0+20x30",
            'sbp_group_commit_seconds_bucket{instance="node-1",le="+Inf"}': "0x10 0+20x30",
        },
        "9m",
        "35m",
    ),
}
"""By alert: values of series, one a minute; a time when it is quiet, and one when it fires."""


def promtool(*words: object) -> str:
    run = subprocess.run(
        [str(PROMTOOL), *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_prometheus_accepts_the_rules():
    assert "SUCCESS" in promtool("check", "rules", ALERTS)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_quiet_before_and_fires_after_what_it_is_about(tmp_path, alert):
    series, quiet_at, fires_at = CASES[alert]
    queries = [
        {
            "eval_time": at,
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
            "exp_samples": [{"labels": "{}", "value": count}],
        }
        for at, count in ((quiet_at, 0), (fires_at, 1))
    ]
    tests = {
        "rule_files": [str(ALERTS)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "promql_expr_test": queries,
            }
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps(tests), encoding="utf-8")  # JSON is YAML
    promtool("test", "rules", path)
