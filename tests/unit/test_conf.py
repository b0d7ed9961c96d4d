"""The files in conf/ say what the code does."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from sbp_core.cli import main as command
from sbp_core.cli.config import SECTIONS, ServeSettings, load_config
from sbp_core.cli.serve import serve
from sbp_core.cluster import ClusterSettings
from sbp_core.pd import PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings

CONF = Path(__file__).parents[2] / "conf"
SERVER = CONF / "server.toml"
SPARK = CONF / "spark-defaults.conf"

KEYS = [(section, key) for section, keys in SECTIONS.items() for key in keys]
SET_BY_THE_CLUSTER = {
    *("data_dir", "host", "advertise_host", "connections_per_address_max", "dialect"),
    "placement_driver",
}


def with_every_key_set() -> str:
    """The file with the keys that have no default put into force."""
    return re.sub(r"^# (\w+ = )", r"\1", SERVER.read_text(encoding="utf-8"), flags=re.MULTILINE)


def comment_above(section: str, key: str) -> str:
    """The comment in front of a key, in one line."""
    part = with_every_key_set().partition(f"[{section}]\n")[2]
    lines = part[: re.search(rf"^{key} = ", part, re.MULTILINE).start()].splitlines()
    comment = []
    while lines and lines[-1].startswith("#"):
        comment.insert(0, lines.pop()[2:])
    return " ".join(comment)


def test_the_file_has_every_key_and_no_other():
    content = tomllib.loads(with_every_key_set())
    assert [(section, key) for section, keys in content.items() for key in keys] == KEYS


def test_values_in_force_are_the_defaults():
    content = tomllib.loads(SERVER.read_text(encoding="utf-8"))
    for section, keys in SECTIONS.items():
        written = {key: content[section].get(key) for key in keys}
        defaults = {
            key: str(setting.default) if isinstance(setting.default, Path) else setting.default
            for key, setting in keys.items()
        }
        assert written == defaults


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_each_key_has_its_meaning_unit_and_limit_above_it(section, key):
    comment = comment_above(section, key)
    documented = SECTIONS[section][key].metadata
    assert documented["doc"] in comment
    assert f"Limit: {documented['limit']}" in comment
    if documented["unit"]:
        assert f"Unit: {documented['unit']}." in comment


def test_the_file_loads_also_with_every_key_set(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(with_every_key_set(), encoding="utf-8")
    names = {each.name for each in (*fields(ClusterSettings), *fields(ServeSettings))}
    assert load_config(path).keys() == names - {"cluster"}


@pytest.mark.parametrize("part", [PlacementDriverSettings, RangeServerSettings])
def test_each_setting_of_a_part_can_be_configured(part):
    section = {PlacementDriverSettings: "placement_driver", RangeServerSettings: "range_server"}
    configurable = set(SECTIONS[section[part]])
    assert configurable == {each.name for each in fields(part)} - SET_BY_THE_CLUSTER


def test_the_help_of_serve_names_the_defaults(capsys):
    with pytest.raises(SystemExit):
        command.main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    defaults = {each.name: each.default for each in fields(ClusterSettings)}
    for option, name in [
        ("--data-dir DIR", "data_dir"),
        ("--host HOST", "host"),
        ("--dialect NAME", "dialect"),
        ("--pd-port PORT", "pd_port"),
        ("--range-server-port PORT", "range_server_port"),
        ("--range-servers N", "range_servers"),
    ]:
        described = text.rpartition(f" {option} ")[2]
        assert re.search(r"\(default: (\S+)\)", described)[1] == str(defaults[name]), option
    assert f"(default: {ServeSettings(ClusterSettings()).log_level})" in text


def test_the_spark_defaults_parse_and_each_says_why():
    settings: dict[str, str] = {}
    is_explained = False
    for line in SPARK.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            is_explained = line.startswith("#")
            continue
        key, value = line.split(maxsplit=1)
        assert is_explained, f"{key} has no comment above it"
        assert re.fullmatch(r"spark(\.\w+)+", key)
        assert key not in settings
        settings[key] = value
    assert settings["spark.master"] == "local[2]"
    assert int(settings["spark.sql.shuffle.partitions"]) <= 4
    assert settings["spark.sql.execution.arrow.pyspark.enabled"] == "true"


def test_the_unit_of_systemd_starts_the_command_with_options_that_exist():
    unit = (CONF / "sbp.service").read_text(encoding="utf-8")
    words = re.search(r"^ExecStart=/usr/local/lib/sbp/bin/sbp (.+)$", unit, re.MULTILINE)[1].split()
    options = command.parse(words)
    assert options.run is serve
    assert f"\nStateDirectory={Path(options.data_dir).name}\n" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_finds_little_exposed(tmp_path):
    unit = tmp_path / "sbp.service"
    text = (CONF / "sbp.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/usr/local/lib/sbp/bin/sbp", "/bin/true"), encoding="utf-8")
    for words in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=20"]):
        run = subprocess.run(
            ["systemd-analyze", *words, unit], check=False, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_the_image_serves_where_its_volume_is_and_exposes_the_ports():
    lines = (CONF / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = dict(line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line))
    options = command.parse(json.loads(steps["CMD"]))
    assert options.data_dir == steps["VOLUME"]
    assert steps["EXPOSE"].split() == [
        str(ClusterSettings().pd_port),
        str(ClusterSettings().range_server_port),
    ]
