"""The settings of a placement driver, of a range server, and of all servers of `sbp serve`."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from sbp_core import group_limits, limits
from sbp_core.errors import ConfigurationError
from sbp_core.record_sizes import RecordSizes
from sbp_core.settings.declaration import (
    choice_setting,
    flag_setting,
    integer_setting,
    list_setting,
    path_setting,
    text_setting,
)
from sbp_core.settings.lake_tables import TableRule
from sbp_core.settings.listening import ListenerSettings, SharedSettings

FSYNC_ALWAYS: Final = "always"
FSYNC_INTERVAL: Final = "interval"
_REPLACE_AFTER_MS: Final = 600_000
_REPLACE_AFTER_MS_MAX: Final = 30 * 86_400_000
_SCRUB_BYTES_PER_S: Final = 4 * limits.MIB
_SCRUB_BYTES_PER_S_MAX: Final = 1024 * limits.MIB
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.DRIVER_NAME_LENGTH_MAX}}}")


def _port_setting(default: int, option: str, **placed: str) -> Any:
    return integer_setting(
        "TCP port to listen on; 0 lets the system pick one.",
        0,
        65_535,
        default=default,
        option=option,
        metavar="PORT",
        **placed,
    )


def _advertised_port_setting(section: str) -> Any:
    return integer_setting(
        "Port that clients connect to, if it is forwarded to this one; 0 is the port to listen on.",
        0,
        65_535,
        default=0,
        section=section,
        key="advertise_port",
    )


@dataclass(frozen=True, kw_only=True)
class CapacityLimits:
    """The settings of the placement driver that bound its metadata."""

    streams_max: int = integer_setting(
        "Streams in the cluster; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.STREAMS_MAX,
        unit="streams",
        section="placement_driver",
    )
    ranges_per_stream_max: int = integer_setting(
        "Ranges of one stream that are not trimmed; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.RANGES_PER_STREAM_MAX,
        unit="ranges",
        section="placement_driver",
    )
    cursors_max: int = integer_setting(
        "Cursors of all consumer groups together; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.CURSORS_MAX,
        unit="cursors",
        section="placement_driver",
    )
    members_max: int = integer_setting(
        "Members of all consumer groups together; admitting more is refused.",
        1,
        limits.ROWS_MAX,
        default=group_limits.MEMBERS_MAX,
        unit="members",
        section="placement_driver",
    )
    decisions_max: int = integer_setting(
        "Committed batches that are kept, and producers with staged ones only; more are refused.",
        1,
        limits.ROWS_MAX,
        default=limits.DECISIONS_MAX,
        unit="batches",
        section="placement_driver",
    )
    aborted_txns_max: int = integer_setting(
        "Aborted transactions that are kept, for 30 days; aborting more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.ABORTED_TXNS_MAX,
        unit="transactions",
        section="placement_driver",
    )


@dataclass(frozen=True, kw_only=True)
class PlacementDriverTuning(CapacityLimits):
    """The settings of a placement driver that `sbp serve` has too."""

    heartbeat_timeout_ms: int = integer_setting(
        "Time without a heartbeat after which a range server gets no new ranges; three of its"
        " heartbeats at least.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        limits.HEARTBEAT_TIMEOUT_MS_MAX,
        default=limits.HEARTBEAT_TIMEOUT_MS,
        unit="milliseconds",
        section="placement_driver",
    )
    fail_over_after_ms: int = integer_setting(
        "Time without a heartbeat, and without an answer when it is asked, after which the streams"
        " with several replicas of a range server go on elsewhere. Range servers send a heartbeat"
        " every third of it at least.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        limits.HEARTBEAT_TIMEOUT_MS_MAX,
        default=limits.FAIL_OVER_AFTER_MS,
        unit="milliseconds",
        section="placement_driver",
    )
    replace_server_after_ms: int = integer_setting(
        "Time without a heartbeat after which the sealed ranges of a range server are copied to"
        " others, as far as they have several replicas. A restart should take less.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        _REPLACE_AFTER_MS_MAX,
        default=_REPLACE_AFTER_MS,
        unit="milliseconds",
        section="placement_driver",
    )
    batch_number_leap_max: int = integer_setting(
        "How far a producer's batch number may be above its last one. A larger number is refused,"
        " as no number below it could be committed afterwards. Raise it for writes whose"
        " txnVersion grows faster, such as a time in milliseconds.",
        1,
        2**63 - 1,
        default=limits.BATCH_NUMBER_LEAP_MAX,
        section="placement_driver",
    )


@dataclass(frozen=True, kw_only=True)
class PlacementDriverSettings(PlacementDriverTuning, ListenerSettings):
    """How one placement driver runs. Raises ConfigurationError when a value cannot work."""

    port: int = _port_setting(12378, "--port")
    name: str = text_setting(
        "Name of this placement driver among those of the cluster.",
        f"letters, digits, '.', '_' and '-', 1..{limits.DRIVER_NAME_LENGTH_MAX} of them",
        default="placement-driver",
        option="--name",
        metavar="NAME",
    )
    store: str | None = text_setting(
        "Where the metadata are: a PostgreSQL database, which several placement drivers may share,"
        " or an SQLite file; the latter in data_dir when not set.",
        "postgresql://USER@HOST:PORT/DATABASE or sqlite:///DIRECTORY/metadata.sqlite",
        default=None,
        option="--store",
        metavar="URL",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store is not None and "://" not in self.store:
            raise ConfigurationError(f"store: expected a URL, got {self.store!r}")
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"name: expected letters, digits, '.', '_' and '-', {limits.DRIVER_NAME_LENGTH_MAX}"
                f" at most, got {reprlib.repr(self.name)}"
            )

    @property
    def home(self) -> Path | str:
        """The data directory or URL of the metadata, for `open_store`."""
        return self.data_dir if self.store is None else self.store


@dataclass(frozen=True, kw_only=True)
class RangeServerTuning:
    """The settings of a range server that `sbp serve` has too."""

    segment_bytes: int = integer_setting(
        "Size at which the log starts a new segment file.",
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        default=limits.SEGMENT_BYTES,
        unit="bytes",
        section="range_server",
    )
    record_bytes_max: int = integer_setting(
        "Size of the largest record that is accepted. A range server with many clients uses up to"
        " 200 MiB and four times this size of memory. Older clients neither write nor read records"
        " above the default, and an older release does not open a log that has them. segment_bytes"
        " must be larger by at least 9 MiB.",
        limits.RECORD_BYTES_MAX,
        limits.RECORD_BYTES_LARGEST,
        default=limits.RECORD_BYTES_MAX,
        unit="bytes",
        option="--record-bytes-max",
        metavar="BYTES",
        section="range_server",
    )
    fsync: str = choice_setting(
        "When an append is acknowledged: always, when it is synced to disk; interval, when it is"
        " written, so that a power failure loses what was not synced yet. Batches of transactions"
        " are always synced.",
        (FSYNC_ALWAYS, FSYNC_INTERVAL),
        default=FSYNC_ALWAYS,
        section="range_server",
    )
    fsync_interval_ms: int = integer_setting(
        "How long an acknowledged append may stay unsynced when fsync is interval.",
        1,
        limits.FSYNC_INTERVAL_MS_MAX,
        default=limits.FSYNC_INTERVAL_MS,
        unit="milliseconds",
        section="range_server",
    )
    disk_free_floor_bytes: int = integer_setting(
        "Free disk space to keep: below it appends are refused, and reads continue.",
        0,
        limits.DISK_FREE_FLOOR_BYTES_MAX,
        default=limits.DISK_FREE_FLOOR_BYTES,
        unit="bytes",
        section="range_server",
    )
    heartbeat_interval_ms: int = integer_setting(
        "Pause between heartbeats to the placement driver.",
        1,
        limits.HEARTBEAT_TIMEOUT_MS // 3,
        default=limits.HEARTBEAT_INTERVAL_MS,
        unit="milliseconds",
        section="range_server",
    )
    retention_check_interval_ms: int = integer_setting(
        "Pause between checks for records whose retention is over and for disk space to free.",
        1,
        limits.RETENTION_CHECK_INTERVAL_MS_MAX,
        default=limits.RETENTION_CHECK_INTERVAL_MS,
        unit="milliseconds",
        section="range_server",
    )
    scrub_bytes_per_s: int = integer_setting(
        "How much of the log is read in a second to find damage, which is then mended from another"
        " replica. All of it is read at most once a day. 0 turns it off; damage that readers find"
        " is mended nevertheless.",
        0,
        _SCRUB_BYTES_PER_S_MAX,
        default=_SCRUB_BYTES_PER_S,
        unit="bytes",
        section="range_server",
    )
    staged_timeout_ms: int = integer_setting(
        "How long batches stay staged for a transaction without a decision; then it is aborted, and"
        " they are dropped.",
        1,
        limits.STAGED_TIMEOUT_MS_MAX,
        default=limits.STAGED_TIMEOUT_MS,
        unit="milliseconds",
        section="range_server",
    )


@dataclass(frozen=True, kw_only=True)
class RangeServerSettings(RangeServerTuning, ListenerSettings):
    """How one range server runs. Raises ConfigurationError when a value cannot work."""

    port: int = _port_setting(10911, "--port")
    placement_driver: str = text_setting(
        "Placement drivers of the cluster, separated by commas. The server registers with the one"
        " that leads, and sends heartbeats to all.",
        f"host:port, 1..{limits.PLACEMENT_DRIVERS_MAX} of them",
        option="--pd",
        metavar="HOST:PORT[,...]",
    )
    rack: str | None = text_setting(
        "Name of what fails together with this server, such as its rack or zone. The replicas of a"
        " range are placed on servers of different racks while there are some.",
        f"1..{limits.RACK_LENGTH_MAX} characters",
        default=None,
        option="--rack",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        from sbp_core.client.connecting import parse_endpoints

        super().__post_init__()
        parse_endpoints(self.placement_driver)
        if self.rack is not None and not 1 <= len(self.rack) <= limits.RACK_LENGTH_MAX:
            raise ConfigurationError(
                f"rack: expected 1..{limits.RACK_LENGTH_MAX} characters, got {len(self.rack)}"
            )
        if self.segment_bytes < self.sizes.segment_bytes_min:
            raise ConfigurationError(
                f"segment_bytes: {self.segment_bytes} is too small for a record_bytes_max of"
                f" {self.record_bytes_max}, since a segment must hold the largest record; set it to"
                f" {self.sizes.segment_bytes_min} or more, or lower record_bytes_max"
            )

    @property
    def sizes(self) -> RecordSizes:
        """The limits that follow from `record_bytes_max`."""
        return RecordSizes(self.record_bytes_max)

    @property
    def sync_interval_ms(self) -> int:
        """How long an acknowledged append may stay unsynced; 0: it is synced before."""
        return self.fsync_interval_ms if self.fsync == FSYNC_INTERVAL else 0


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(RangeServerTuning, PlacementDriverTuning, SharedSettings):
    """How a placement driver and range servers run in one process.

    Everything is stored below `data_dir`, each part in a folder of its own. All parts share the
    settings of `SharedSettings`. The range servers take consecutive ports from `range_server_port`
    on, or free ones when that is 0; likewise they advertise consecutive ports. Raises
    ConfigurationError when a value cannot work.
    """

    data_dir: Path = path_setting(
        "Folder of everything that is stored; made when missing, used by one process at a time."
        " A relative path starts at the working directory.",
        "a folder that can be written",
        default=Path("sbp-data"),
        option="--data-dir",
        metavar="DIR",
    )
    range_servers: int = integer_setting(
        "Range servers to run; they take consecutive ports.",
        1,
        limits.CLUSTER_RANGE_SERVERS_MAX,
        default=1,
        unit="servers",
        option="--range-servers",
        metavar="N",
    )
    lake: bool = flag_setting(
        "Whether the streams with a lake table land in Iceberg tables below the data folder, as"
        " with `sbp lake`.",
        option="--lake",
    )
    lake_tables: tuple[str, ...] = list_setting(
        "Tables of streams that have none yet. The first pattern that matches the name of a stream"
        " sets its property lake.table; {stream} is the name.",
        "PATTERN=NAMESPACE.TABLE, such as orders-*=sales.{stream}",
        section="lake",
        key="tables",
        option="--lake-table",
        metavar="PATTERN=TABLE",
    )
    kafka: bool = flag_setting(
        "Whether clients of Apache Kafka are served, as with `sbp kafka`.", option="--kafka"
    )
    kafka_port: int = _port_setting(9092, "--kafka-port")
    pd_port: int = _port_setting(12378, "--pd-port", section="placement_driver", key="port")
    pd_advertise_port: int = _advertised_port_setting("placement_driver")
    range_server_port: int = _port_setting(
        10911, "--range-server-port", section="range_server", key="port"
    )
    range_server_advertise_port: int = _advertised_port_setting("range_server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heartbeat_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigurationError(
                f"heartbeat_timeout_ms {self.heartbeat_timeout_ms} is too short for a"
                f" heartbeat_interval_ms of {self.heartbeat_interval_ms}: it takes three at least,"
                f" {3 * self.heartbeat_interval_ms}"
            )
        for name, is_on in (("lake", self.lake), ("kafka", self.kafka)):
            if is_on and (self.tls_cert_file is not None or self.auth_admins):
                raise ConfigurationError(
                    f"{name} is for servers without TLS and identities; beside others run"
                    f" `sbp {name}`, which has the options of a client"
                )
        _ = self.lake_rules
        self.placement_driver()
        ports = {self.range_server(index, "unused:1").port for index in range(self.range_servers)}
        if self.pd_port != 0 and self.pd_port in ports:
            raise ConfigurationError(
                f"pd_port {self.pd_port} is also the port of a range server"
                f" ({min(ports)}..{max(ports)}); choose another one"
            )

    @property
    def lake_rules(self) -> list[TableRule]:
        """The rules of `lake_tables`. Raises ConfigurationError."""
        return [*map(TableRule.parse, self.lake_tables)]

    def placement_driver(self) -> PlacementDriverSettings:
        """Return the settings of the placement driver."""
        return PlacementDriverSettings(
            data_dir=self.data_dir / "placement-driver",
            port=self.pd_port,
            advertise_port=self.pd_advertise_port,
            **self._values_of(PlacementDriverTuning),
        )

    def range_server(self, index: int, placement_driver: str) -> RangeServerSettings:
        """Return the settings of a range server whose placement driver is at "host:port"."""
        ports = (self.range_server_port, self.range_server_advertise_port)
        port, advertise_port = (each + index if each else 0 for each in ports)
        return RangeServerSettings(
            data_dir=self.data_dir / f"range-server-{index}",
            placement_driver=placement_driver,
            port=port,
            advertise_port=advertise_port,
            **self._values_of(RangeServerTuning),
        )

    def _values_of(self, tuning: type) -> dict[str, Any]:
        """Return the values of the shared settings and of those in a class, by name."""
        declared = (*fields(SharedSettings), *fields(tuning))
        return {each.name: getattr(self, each.name) for each in declared}
