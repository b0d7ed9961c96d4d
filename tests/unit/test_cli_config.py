"""Settings of `sbp serve`: command line over file over defaults, and every fault named."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.settings.configuration import PD, SERVE, ServeSettings
from sbp_core.settings.quota_settings import NO_RULES, rules_of
from sbp_core.settings.server_settings import ClusterSettings
from tests.support.machines import parsed


def options(*words: str) -> Any:
    return parsed("serve", *words)


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "server.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults():
    assert SERVE.load(options()) == ServeSettings(servers=ClusterSettings())


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(config):
    path = config(
        '[serve]\ndata_dir = "there"\nrange_servers = 3\nlog_level = "info"\n'
        "[placement_driver]\nport = 1\nheartbeat_timeout_ms = 20000\n[range_server]\nport = 0\n"
    )
    settings = SERVE.load(options("--config", str(path), "--pd-port", "0", "--range-servers", "2"))
    assert settings == ServeSettings(
        servers=ClusterSettings(
            data_dir=Path("there"),
            range_servers=2,
            pd_port=0,
            range_server_port=0,
            heartbeat_timeout_ms=20_000,
        ),
        log_level="info",
    )


def test_quotas_are_in_the_configuration_file_or_one_of_their_own(config, tmp_path):
    path = config("[quotas]\nconnections = 3\n")
    assert SERVE.load(options("--config", str(path))).servers.quotas_file == path
    other = tmp_path / "quotas.toml"
    given = options("--config", str(path), "--quotas-file", str(other))
    assert SERVE.load(given).servers.quotas_file == other


def test_quotas_are_shown_as_they_hold_and_not_as_their_file_is(config):
    path = config("[quotas]\nconnections = 4\n")
    settings = SERVE.load(options("--config", str(path)))
    held = rules_of({"connections": 3, "O=Acme , CN=etl": {"requests_per_s": 7}})
    shown = SERVE.shown(settings, held)["quotas"]
    assert shown["file"] == str(path)
    assert shown["default"] == dict.fromkeys(shown["default"], 0) | {"connections": 3}
    assert shown["by_subject"]["O=Acme,CN=etl"] == shown["default"] | {"requests_per_s": 7}
    assert json.loads(json.dumps(shown)) == shown


def test_all_faults_of_quotas_are_named_at_once(config):
    path = config(
        "[quotas]\nconnectoins = 3\nbytes_in_per_s = -1\n"
        '[quotas."=x"]\n[quotas."CN=etl"]\nmemory_bytes = "1"\nrequests_per_s = true\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        SERVE.load(options("--config", str(path)))
    for fault in (
        "unknown key 'connectoins' in [quotas] (known: bytes_in_per_s",
        "bytes_in_per_s in [quotas]: expected an integer in 0..1099511627776, got -1",
        "'=x' in [quotas] is not a subject: ",
        'memory_bytes in [quotas."CN=etl"]: expected an integer',
        'requests_per_s in [quotas."CN=etl"]: expected an integer',
    ):
        assert fault in str(caught.value)


def test_every_option_reaches_its_setting(tmp_path):
    settings = SERVE.load(
        options(
            *("--data-dir", "d", "--host", "::1", "--advertise-host", "log.example.org"),
            "--insecure",
            *("--pd-port", "1", "--range-server-port", "2", "--range-servers", "3"),
            *("--ready-file", str(tmp_path / "ready"), "--log-level", "debug"),
        )
    )
    cluster = ClusterSettings(
        data_dir=Path("d"),
        host="::1",
        insecure=True,
        advertise_host="log.example.org",
        range_servers=3,
        pd_port=1,
        range_server_port=2,
    )
    assert settings == ServeSettings(
        servers=cluster, ready_file=tmp_path / "ready", log_level="debug"
    )


def test_all_faults_of_a_file_are_named_at_once_with_the_nearest_names(config):
    path = config(
        'top = 1\nserve = {data_dri = "x", host = 7, range_servers = true}\n'
        'range_server = 3\n[range_servers]\nport = 1\n[placement_driver]\nport = "12378"\n'
        "zzzzzz = 1\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        SERVE.read_file(path)
    text = str(caught.value)
    assert str(path) in text
    for fault in (
        "unknown key 'top'",
        "unknown key 'data_dri' in [serve], did you mean data_dir?",
        "host in [serve]: expected a string, got 7",
        "range_servers in [serve]: expected an integer in 1..64, got True",
        "range_server is a section: write [range_server]",
        "unknown section 'range_servers', did you mean range_server?",
        "port in [placement_driver]: expected an integer in 0..65535, got '12378'",
        "unknown key 'zzzzzz' in [placement_driver] (known: streams_max, ",
    ):
        assert fault in text


@pytest.mark.parametrize("content", [b"[serve", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, content):
    path = tmp_path / "server.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not TOML"):
        SERVE.read_file(path)


def test_a_file_that_is_nested_too_deeply_is_refused(config):
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        SERVE.read_file(config("a = " + 50_000 * "["))


def test_a_file_that_is_too_large_is_refused(config):
    with pytest.raises(ConfigurationError, match="more than 1048576 bytes"):
        SERVE.read_file(config("#" * (limits.SMALL_FILE_BYTES_MAX + 1)))


def test_a_fifo_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "server.toml")
    with pytest.raises(ConfigurationError, match="it is not a regular file"):
        SERVE.read_file(tmp_path / "server.toml")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('data_dir = ""', "data_dir in [serve]: the path is empty"),
        ('ready_file = ""', "ready_file in [serve]: the path is empty"),
        ('data_dir = "a\\u0000b"', "data_dir in [serve]: 'a\\x00b' is not a path"),
    ],
)
def test_paths_that_are_none_are_refused(config, line, fault):
    with pytest.raises(ConfigurationError) as caught:
        SERVE.read_file(config(f"[serve]\n{line}\n"))
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("section", "line", "named"),
    [
        ("range_server", 'fsync = "sometimes"', "fsync in [range_server]: expected one of"),
        ("range_server", "port = 70000", "port in [range_server]: expected an integer"),
        ("serve", 'host = "a b"', "host in [serve]: 'a b' is not a host"),
        ("serve", 'log_level = "loud"', "log_level in [serve]: expected one of"),
        ("serve", 'ready_file = "/no/such/x"', "ready_file in [serve] /no/such/x: there is no"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_file_and_section(config, section, line, named):
    path = config(f"[{section}]\n{line}\n")
    with pytest.raises(ConfigurationError) as caught:
        SERVE.load(options("--config", str(path)))
    assert str(caught.value).startswith(f"{path}: {named}")


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        SERVE.read_file(tmp_path / name)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pd-port", "65536"], "65536"),
        (["--range-server-port", "-1"], "-1"),
        (["--range-server-port", "65535", "--range-servers", "2"], "65536"),
        (["--range-servers", "0"], "range_servers: expected an integer in 1..64, got 0"),
        (["--range-servers", str(limits.CLUSTER_RANGE_SERVERS_MAX + 1)], "range_servers"),
        (["--pd-port", "9001", "--range-server-port", "9000", "--range-servers", "2"], "9001"),
        (["--host", "0.0.0.0"], "advertise_host"),
        (["--host", "0.0.0.0", "--advertise-host", "localhost"], "allow it with --insecure"),
        (["--host", "a b"], "a b"),
        (["--log-level", "loud"], "'loud'"),
        (["--ready-file", "/no/such/folder/ready"], "/no/such/folder"),
    ],
)
def test_values_that_cannot_work_are_refused(words, named):
    with pytest.raises(ConfigurationError) as caught:
        SERVE.load(options(*words))
    assert named in str(caught.value)


def test_heartbeats_must_fit_into_their_timeout():
    with pytest.raises(ConfigurationError, match="9000"):
        ClusterSettings(heartbeat_timeout_ms=8_999, heartbeat_interval_ms=3_000)
    ClusterSettings(heartbeat_timeout_ms=9_000, heartbeat_interval_ms=3_000)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://sbp:secret@db:5432/sbp", "postgresql://sbp:...@db:5432/sbp"),
        ("postgresql://sbp:a@secret@db/sbp", "postgresql://sbp:...@db/sbp"),
        ("postgresql://sbp:se?cret@db/sbp", "postgresql://sbp:...@db/sbp"),
        ("postgresql://db/sbp?password=secret@x", "postgresql://db/sbp:...@x"),
        ("postgresql://db/sbp?user=a&password=secret", "postgresql://db/sbp?..."),
        ("sqlite:////var/lib/metadata.sqlite", "sqlite:////var/lib/metadata.sqlite"),
    ],
)
def test_settings_are_shown_without_passwords(tmp_path, url, shown):
    words = ["pd", "--data-dir", str(tmp_path), "--store", url, "--admin-port", "9464"]
    settings = PD.load(parsed(*words))
    found = PD.shown(settings, NO_RULES)
    assert found["placement_driver"]["store"] == shown
    assert found["placement_driver"]["admin_port"] == settings.admin_port == 9464
    assert found["placement_driver"]["data_dir"] == str(tmp_path)
    assert "secret" not in json.dumps(found)
