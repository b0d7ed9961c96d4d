"""The files in conf/ say what the code does."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml

from sbp_core.cli import main as command_line
from sbp_core.processes import _toml
from sbp_core.settings.configuration import PD, RANGE_SERVER, SERVE, ServeSettings
from sbp_core.settings.declaration import setting_of
from sbp_core.settings.server_settings import (
    ClusterSettings,
    PlacementDriverSettings,
    RangeServerSettings,
)
from tests.support.machines import parsed

CONF = Path(__file__).parents[2] / "conf"
SPARK = CONF / "spark-defaults.conf"

CONFIGURATIONS = {each.command: each for each in (SERVE, PD, RANGE_SERVER)}
KEYS = [
    (command, section, key)
    for command, each in CONFIGURATIONS.items()
    for section, keys in each.sections.items()
    for key in keys
]
SET_BY_THE_CLUSTER = {
    *("data_dir", "host", "insecure", "advertise_host", "connections_per_address_max"),
    *("placement_driver", "name", "store", "rack"),
    *("tls_cert_file", "tls_key_file", "tls_ca_file", "tls_client_ca_file"),
    "tls_client_certificates",
    *("auth_admins", "auth_servers", "auth_monitors", "auth_jwks_file", "auth_jwks_url"),
    "auth_jwks_ca_file",
    *("auth_issuer", "auth_audience", "quotas_file"),
}
commands = pytest.mark.parametrize("command", CONFIGURATIONS)


def text_of(command: str) -> str:
    return (CONF / CONFIGURATIONS[command].file_name).read_text(encoding="utf-8")


def with_every_key_set(command: str) -> str:
    """The file with the keys that have no default put into force."""
    return re.sub(r"^# (\w+ = )", r"\1", text_of(command), flags=re.MULTILINE)


def with_keys_that_agree(command: str) -> str:
    """The same with administrators, and one place of the keys of tokens."""
    text = with_every_key_set(command).replace("admins = []", 'admins = ["alice"]')
    return re.sub("^(jwks_url|jwks_ca_file) = ", r"# \1 = ", text, flags=re.MULTILINE)


def comment_above(command: str, section: str, key: str) -> str:
    """The comment in front of a key, in one line."""
    part = with_every_key_set(command).partition(f"[{section}]\n")[2]
    lines = part[: re.search(rf"^{key} = ", part, re.MULTILINE).start()].splitlines()
    comment = []
    while lines and lines[-1].startswith("#"):
        comment.insert(0, lines.pop()[2:])
    return " ".join(comment)


@commands
def test_the_file_has_every_key_and_no_other(command):
    content = tomllib.loads(with_every_key_set(command))
    found = [(command, section, key) for section, keys in content.items() for key in keys]
    assert found == [each for each in KEYS if each[0] == command]


@commands
def test_values_in_force_are_the_defaults(command):
    content = tomllib.loads(text_of(command))
    for section, keys in CONFIGURATIONS[command].sections.items():
        written = {key: content[section].get(key) for key in keys}
        defaults = {
            key: str(setting.default) if isinstance(setting.default, Path) else setting.default
            for key, setting in keys.items()
        }
        assert written == {
            key: None if each is MISSING else list(each) if isinstance(each, tuple) else each
            for key, each in defaults.items()
        }


@pytest.mark.parametrize(("command", "section", "key"), KEYS)
def test_each_key_has_its_meaning_unit_and_limit_above_it(command, section, key):
    comment = comment_above(command, section, key)
    setting = CONFIGURATIONS[command].sections[section][key]
    documented = setting_of(setting)
    assert documented.doc in comment
    assert f"Limit: {documented.limit}" in comment
    assert ("Required" in comment) is (setting.default is MISSING)
    if documented.unit:
        assert f"Unit: {documented.unit}." in comment


@commands
def test_the_file_loads_also_with_every_key_set(command, tmp_path):
    configuration = CONFIGURATIONS[command]
    path = tmp_path / configuration.file_name
    path.write_text(with_every_key_set(command), encoding="utf-8")
    names = {each.name for each in (*fields(configuration.servers), *fields(ServeSettings))}
    assert configuration.read_file(path).keys() == names - {"servers"}
    path.write_text(with_keys_that_agree(command), encoding="utf-8")
    settings = configuration.load(parsed(command, "--config", str(path)))
    assert settings.servers.advertise_host == "log.example.org"
    assert settings.servers.auth_admins == ("alice",)


def test_a_range_server_in_a_process_of_its_own_gets_the_settings_of_the_cluster(tmp_path):
    cluster = ClusterSettings(data_dir=tmp_path, insecure=True)
    given = cluster.range_server(1, "pd:1")
    path = tmp_path / "range-server.toml"
    path.write_text(_toml(given, {"log_level": "info", "log_format": "text"}), encoding="utf-8")
    words = ["range-server", "--config", str(path), "--data-dir", str(given.data_dir)]
    assert RANGE_SERVER.load(parsed(*words)).servers == given


@pytest.mark.parametrize("part", [PlacementDriverSettings, RangeServerSettings])
def test_each_setting_of_a_part_can_be_configured(part):
    section = {PlacementDriverSettings: "placement_driver", RangeServerSettings: "range_server"}
    configurable = set(SERVE.sections[section[part]])
    assert configurable == {each.name for each in fields(part)} - SET_BY_THE_CLUSTER


@commands
def test_the_help_names_the_defaults_of_one_server(command, capsys):
    assert command_line.main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    defaults = {each.name: each.default for each in fields(CONFIGURATIONS[command].servers)}
    options = [("--host HOST", "host")]
    options += {"serve": [], "pd": [("--name NAME", "name")]}.get(command, [])
    options += [] if command == "serve" else [("--port PORT", "port")]
    for option, name in options:
        described = text.rpartition(f" {option} ")[2]
        assert re.search(r"\[default: (\S+)\]", described)[1] == str(defaults[name]), option
    assert f"conf/{CONFIGURATIONS[command].file_name} names all of them" in text


def test_the_help_of_serve_names_the_defaults(capsys):
    assert command_line.main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    defaults = {each.name: each.default for each in fields(ClusterSettings)}
    for option, name in [
        ("--data-dir DIR", "data_dir"),
        ("--host HOST", "host"),
        ("--pd-port PORT", "pd_port"),
        ("--range-server-port PORT", "range_server_port"),
        ("--range-servers N", "range_servers"),
    ]:
        described = text.rpartition(f" {option} ")[2]
        assert re.search(r"\[default: (\S+)\]", described)[1] == str(defaults[name]), option
    assert f"[default: {ServeSettings(servers=ClusterSettings()).log_level}]" in text


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


UNITS = {
    "sbp.service": ("serve", "sbp"),
    "sbp-pd.service": ("pd", "sbp-pd"),
    "sbp-range-server.service": ("range-server", "sbp-range-server"),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_of_systemd_starts_the_command_with_options_that_exist(name):
    unit = (CONF / name).read_text(encoding="utf-8")
    words = re.search(r"^ExecStart=/usr/local/lib/sbp/bin/sbp (.+)$", unit, re.MULTILINE)[1].split()
    command, folder = UNITS[name]
    options = parsed(*words)
    assert words[0] == command
    config = options["config"]
    assert Path(config).name == CONFIGURATIONS[command].file_name
    assert f"install -D -m 644 conf/{Path(config).name} {config}" in unit
    assert Path(options["data_dir"]) == Path("/var/lib", folder)
    assert f"\nStateDirectory={folder}\n" in unit
    assert set(re.findall('"/var/log/(.+)/', text_of(command))) == {"sbp"}
    assert "\nLogsDirectory=sbp\n" in unit


def test_the_units_of_systemd_differ_in_what_they_run_only():
    def rest(name: str) -> list[str]:
        text = (CONF / name).read_text(encoding="utf-8").partition("[Unit]\n")[2]
        own = ("Description=", "ExecStart=", "StateDirectory=", "#")
        return [line for line in text.splitlines() if not line.startswith(own)]

    assert rest("sbp-pd.service") == rest("sbp-range-server.service") == rest("sbp.service")


def test_the_unit_of_http_differs_from_those_of_servers_by_its_data_only():
    def rest(name: str) -> list[str]:
        text = (CONF / name).read_text(encoding="utf-8").partition("[Unit]\n")[2]
        own = ("Description=", "ExecStart=", "StateDirectory", "#")
        return [line for line in text.splitlines() if not line.startswith(own)]

    assert rest("sbp-http.service") == rest("sbp-pd.service")
    unit = (CONF / "sbp-http.service").read_text(encoding="utf-8")
    words = re.search(r"^ExecStart=/usr/local/lib/sbp/bin/sbp (.+)$", unit, re.MULTILINE)[1].split()
    assert words[0] == "http"
    assert parsed(*words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", [*UNITS, "sbp-http.service"])
def test_systemd_accepts_the_units_and_finds_little_exposed(name, tmp_path):
    unit = tmp_path / name
    text = (CONF / name).read_text(encoding="utf-8")
    unit.write_text(text.replace("/usr/local/lib/sbp/bin/sbp", "/bin/true"), encoding="utf-8")
    for words in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=20"]):
        run = subprocess.run(
            ["systemd-analyze", *words, unit], check=False, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_the_image_serves_where_its_volume_is_and_exposes_the_ports():
    lines = (CONF / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = dict(line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line))
    options = parsed(*json.loads(steps["CMD"]))
    assert options["data_dir"] == steps["VOLUME"]
    assert steps["EXPOSE"].split() == [
        str(ClusterSettings().pd_port),
        str(ClusterSettings().range_server_port),
    ]


def test_the_cluster_of_compose_starts_servers_that_find_each_other():
    services = yaml.safe_load((CONF / "compose-cluster.yaml").read_text("utf-8"))["services"]
    given = {name: parsed(*each["command"]) for name, each in services.items() if "command" in each}
    drivers = {name for name, each in services.items() if each.get("command", [""])[0] == "pd"}
    nodes = given.keys() - drivers
    assert (len(drivers), len(nodes)) == (2, 3)
    endpoints = ",".join(f"{name}:12378" for name in sorted(drivers))
    for name, options in given.items():
        assert CONFIGURATIONS["pd" if name in drivers else "range-server"].load(options)
        assert options["data_dir"] == "/var/lib/sbp"
        assert services[name]["volumes"] == [f"{name}:/var/lib/sbp"]
        assert options["advertise"] == f"{name}:{12378 if name in drivers else 10911}"
    assert {given[name]["name"] for name in drivers} == drivers
    assert len({given[name]["store"] for name in drivers}) == 1
    assert {given[name]["rack"] for name in nodes} == nodes
    assert {given[name]["placement_driver"] for name in nodes} == {endpoints}
