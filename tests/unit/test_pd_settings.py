"""Settings of the placement driver: every wrong value is refused with the name of the setting."""

import dataclasses
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.pd import PlacementDriverSettings


def test_defaults():
    settings = PlacementDriverSettings(data_dir=Path("data"))
    assert (settings.host, settings.port) == ("127.0.0.1", 12378)
    assert settings.heartbeat_timeout_ms == limits.HEARTBEAT_TIMEOUT_MS
    assert settings.public_host == "127.0.0.1"


def test_each_setting_is_documented():
    for setting in dataclasses.fields(PlacementDriverSettings):
        assert set(setting.metadata) == {"doc", "unit", "limit"}, setting.name
        assert setting.metadata["doc"].endswith("."), setting.name
        assert setting.metadata["limit"], setting.name
        assert (setting.metadata["unit"] == "milliseconds") == setting.name.endswith("_ms")


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
        ("advertise_host", "0.0.0.0"),
        ("advertise_host", 7),
        ("heartbeat_timeout_ms", limits.HEARTBEAT_TIMEOUT_MS_MIN - 1),
        ("heartbeat_timeout_ms", limits.HEARTBEAT_TIMEOUT_MS_MAX + 1),
        ("heartbeat_timeout_ms", None),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        PlacementDriverSettings(**{"data_dir": Path("data"), name: value})


@pytest.mark.parametrize("host", ["localhost", "10.0.0.5", "::1", "pd_1.lan.example.org"])
def test_hosts(host):
    assert PlacementDriverSettings(data_dir=Path("data"), host=host).public_host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_interface_needs_a_name_to_advertise(host):
    settings = PlacementDriverSettings(
        data_dir=Path("data"), host=host, advertise_host="pd.example.org"
    )
    assert settings.public_host == "pd.example.org"
