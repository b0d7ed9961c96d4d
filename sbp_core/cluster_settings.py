"""The settings of a placement driver and range servers that run together."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.pd import PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.server.settings import (
    ListenerSettings,
    check_auth,
    check_settings,
    check_tls,
    integer_setting,
    setting,
)


def _setting_of(part: type, name: str) -> Any:
    """Return a field with the default and the documentation of a setting of one part."""
    (own,) = (each for each in fields(part) if each.name == name)
    return field(default=own.default, metadata={**own.metadata, "part": part, "name": name})


_SHARED: Final = (
    *("host", "insecure", "advertise_host", "connections_per_address_max", "quotas_file"),
    *(each.name for each in fields(ListenerSettings) if "section" in each.metadata),
)
"""Settings that are the same for all parts: among them those of TLS and of identities."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a placement driver and range servers run in one process.

    Everything is stored below `data_dir`, each part in a folder of its own. All parts listen on
    `host`, `insecure` or not, have the same TLS, identities and quotas, and take
    `connections_per_address_max`. The range servers take consecutive ports from
    `range_server_port` on, or free ones when that is 0; likewise they advertise consecutive ports.
    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = setting(
        "Folder of everything that is stored; made when missing, used by one process at a time."
        " A relative path starts at the working directory.",
        "a folder that can be written",
        default=Path("sbp-data"),
    )
    host: str = _setting_of(PlacementDriverSettings, "host")
    insecure: bool = _setting_of(PlacementDriverSettings, "insecure")
    advertise_host: str | None = _setting_of(PlacementDriverSettings, "advertise_host")
    range_servers: int = integer_setting(
        "Range servers to run; they take consecutive ports.",
        1,
        limits.CLUSTER_RANGE_SERVERS_MAX,
        default=1,
        unit="servers",
    )
    connections_per_address_max: int = _setting_of(
        PlacementDriverSettings, "connections_per_address_max"
    )
    tls_cert_file: Path | None = _setting_of(PlacementDriverSettings, "tls_cert_file")
    tls_key_file: Path | None = _setting_of(PlacementDriverSettings, "tls_key_file")
    tls_ca_file: Path | None = _setting_of(PlacementDriverSettings, "tls_ca_file")
    tls_client_ca_file: Path | None = _setting_of(PlacementDriverSettings, "tls_client_ca_file")
    tls_client_certificates: str = _setting_of(PlacementDriverSettings, "tls_client_certificates")
    auth_admins: tuple[str, ...] = _setting_of(PlacementDriverSettings, "auth_admins")
    auth_servers: tuple[str, ...] = _setting_of(PlacementDriverSettings, "auth_servers")
    auth_monitors: tuple[str, ...] = _setting_of(PlacementDriverSettings, "auth_monitors")
    auth_jwks_file: Path | None = _setting_of(PlacementDriverSettings, "auth_jwks_file")
    auth_jwks_url: str | None = _setting_of(PlacementDriverSettings, "auth_jwks_url")
    auth_jwks_ca_file: Path | None = _setting_of(PlacementDriverSettings, "auth_jwks_ca_file")
    auth_issuer: str | None = _setting_of(PlacementDriverSettings, "auth_issuer")
    auth_audience: str | None = _setting_of(PlacementDriverSettings, "auth_audience")
    quotas_file: Path | None = _setting_of(PlacementDriverSettings, "quotas_file")
    pd_port: int = _setting_of(PlacementDriverSettings, "port")
    pd_advertise_port: int = _setting_of(PlacementDriverSettings, "advertise_port")
    heartbeat_timeout_ms: int = _setting_of(PlacementDriverSettings, "heartbeat_timeout_ms")
    fail_over_after_ms: int = _setting_of(PlacementDriverSettings, "fail_over_after_ms")
    replace_server_after_ms: int = _setting_of(PlacementDriverSettings, "replace_server_after_ms")
    batch_number_leap_max: int = _setting_of(PlacementDriverSettings, "batch_number_leap_max")
    streams_max: int = _setting_of(PlacementDriverSettings, "streams_max")
    ranges_per_stream_max: int = _setting_of(PlacementDriverSettings, "ranges_per_stream_max")
    cursors_max: int = _setting_of(PlacementDriverSettings, "cursors_max")
    members_max: int = _setting_of(PlacementDriverSettings, "members_max")
    decisions_max: int = _setting_of(PlacementDriverSettings, "decisions_max")
    aborted_txns_max: int = _setting_of(PlacementDriverSettings, "aborted_txns_max")
    range_server_port: int = _setting_of(RangeServerSettings, "port")
    range_server_advertise_port: int = _setting_of(RangeServerSettings, "advertise_port")
    segment_bytes: int = _setting_of(RangeServerSettings, "segment_bytes")
    record_bytes_max: int = _setting_of(RangeServerSettings, "record_bytes_max")
    fsync: str = _setting_of(RangeServerSettings, "fsync")
    fsync_interval_ms: int = _setting_of(RangeServerSettings, "fsync_interval_ms")
    disk_free_floor_bytes: int = _setting_of(RangeServerSettings, "disk_free_floor_bytes")
    heartbeat_interval_ms: int = _setting_of(RangeServerSettings, "heartbeat_interval_ms")
    retention_check_interval_ms: int = _setting_of(
        RangeServerSettings, "retention_check_interval_ms"
    )
    scrub_bytes_per_s: int = _setting_of(RangeServerSettings, "scrub_bytes_per_s")
    staged_timeout_ms: int = _setting_of(RangeServerSettings, "staged_timeout_ms")

    def __post_init__(self) -> None:
        check_settings(self)
        check_tls(self)
        check_auth(self)
        if self.heartbeat_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigurationError(
                f"heartbeat_timeout_ms {self.heartbeat_timeout_ms} is too short for a"
                f" heartbeat_interval_ms of {self.heartbeat_interval_ms}: it takes three at least,"
                f" {3 * self.heartbeat_interval_ms}"
            )
        self.placement_driver()
        ports = {self.range_server(index, "unused:1").port for index in range(self.range_servers)}
        if self.pd_port != 0 and self.pd_port in ports:
            raise ConfigurationError(
                f"pd_port {self.pd_port} is also the port of a range server"
                f" ({min(ports)}..{max(ports)}); choose another one"
            )

    def placement_driver(self) -> PlacementDriverSettings:
        """Return the settings of the placement driver."""
        return PlacementDriverSettings(
            data_dir=self.data_dir / "placement-driver",
            **self._settings_of(PlacementDriverSettings),
        )

    def range_server(self, index: int, placement_driver: str) -> RangeServerSettings:
        """Return the settings of a range server whose placement driver is at "host:port"."""
        settings = self._settings_of(RangeServerSettings)
        for port in ("port", "advertise_port"):
            if settings[port] != 0:
                settings[port] += index
        return RangeServerSettings(
            data_dir=self.data_dir / f"range-server-{index}",
            placement_driver=placement_driver,
            **{name: getattr(self, name) for name in _SHARED},
            **settings,
        )

    def _settings_of(self, part: type) -> dict[str, Any]:
        return {
            each.metadata["name"]: getattr(self, each.name)
            for each in fields(self)
            if each.metadata.get("part") is part
        }
