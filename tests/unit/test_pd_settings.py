"""Settings of the placement driver: every wrong value is refused with the name of the setting."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.settings.declaration import setting_of
from sbp_core.settings.server_settings import (
    ClusterSettings,
    PlacementDriverSettings,
    RangeServerSettings,
)


def test_defaults():
    settings = PlacementDriverSettings(data_dir=Path("data"))
    assert (settings.host, settings.port) == ("127.0.0.1", 12378)
    assert settings.heartbeat_timeout_ms == limits.HEARTBEAT_TIMEOUT_MS
    assert settings.public_endpoint(12378) == "127.0.0.1:12378"


def test_each_setting_is_documented():
    for each in dataclasses.fields(PlacementDriverSettings):
        setting = setting_of(each)
        assert setting.doc.endswith("."), each.name
        assert setting.limit, each.name
        assert (setting.unit == "milliseconds") == each.name.endswith("_ms")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_dir", "a string"),
        ("host", ""),
        ("host", None),
        ("host", "0.0.0.0"),
        ("host", "::"),
        ("host", "a b"),
        ("host", "localhost:1"),
        ("host", "caf\u00e9"),
        ("host", "h" * 1000),
        ("port", -1),
        ("port", 65_536),
        ("port", "12378"),
        ("port", True),
        ("port", 1.0),
        ("advertise_host", ""),
        ("store", 7),
        ("store", "/var/lib/sbp"),
        ("advertise_host", "0.0.0.0"),
        ("advertise_host", 7),
        ("advertise_port", -1),
        ("advertise_port", 65_536),
        ("heartbeat_timeout_ms", limits.HEARTBEAT_TIMEOUT_MS_MIN - 1),
        ("heartbeat_timeout_ms", limits.HEARTBEAT_TIMEOUT_MS_MAX + 1),
        ("heartbeat_timeout_ms", None),
        ("batch_number_leap_max", 0),
        ("batch_number_leap_max", 2**63),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        PlacementDriverSettings(**{"data_dir": Path("data"), name: value})


@pytest.mark.parametrize("host", ["localhost", "10.0.0.5", "::1", "pd_1.lan.example.org"])
def test_hosts(host):
    settings = PlacementDriverSettings(data_dir=Path("data"), host=host, insecure=True)
    assert settings.public_endpoint(1) == (f"[{host}]:1" if ":" in host else f"{host}:1")


@pytest.mark.parametrize("host", ["10.0.0.5", "2001:db8::1", "0.0.0.0", "::", "::ffff:10.0.0.5"])
@pytest.mark.parametrize("part", ["serve", "pd", "range-server"])
def test_an_address_that_other_machines_reach_is_refused(part, host):
    make = {
        "serve": partial(ClusterSettings, data_dir=Path("data")),
        "pd": partial(PlacementDriverSettings, data_dir=Path("data")),
        "range-server": partial(
            RangeServerSettings, data_dir=Path("data"), placement_driver="pd.example.org:1"
        ),
    }[part]
    with pytest.raises(ConfigurationError, match=rf"{host} can be reached.*with --insecure"):
        make(host=host, advertise_host="localhost")
    assert make(host=host, advertise_host="localhost", insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_is_not_refused_whatever_is_advertised(host):
    settings = PlacementDriverSettings(
        data_dir=Path("data"), host=host, advertise_host="pd.example.org"
    )
    assert settings.public_endpoint(1) == "pd.example.org:1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_interface_needs_a_name_to_advertise(host):
    settings = PlacementDriverSettings(
        data_dir=Path("data"), host=host, insecure=True, advertise_host="pd.example.org"
    )
    assert settings.public_endpoint(1) == "pd.example.org:1"


def test_a_forwarded_port_is_advertised_instead_of_the_one_behind_it():
    settings = PlacementDriverSettings(data_dir=Path("data"), port=1, advertise_port=80)
    assert settings.public_endpoint(1) == "127.0.0.1:80"


def test_range_servers_of_a_cluster_advertise_consecutive_ports():
    cluster = ClusterSettings(
        range_servers=2, pd_advertise_port=80, range_server_port=0, range_server_advertise_port=90
    )
    servers = [cluster.range_server(index, "pd:1") for index in range(2)]
    assert cluster.placement_driver().advertise_port == 80
    assert [(each.port, each.advertise_port) for each in servers] == [(0, 90), (0, 91)]
