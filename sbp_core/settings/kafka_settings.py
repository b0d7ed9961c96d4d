"""The settings of `sbp kafka`: where it listens, which topics it serves, how it creates them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sbp_core.errors import ConfigurationError
from sbp_core.settings.declaration import (
    flag_setting,
    integer_setting,
    list_setting,
    path_setting,
    text_setting,
)
from sbp_core.settings.listening import is_wildcard
from sbp_core.settings.web_settings import WebSettings, port_setting

REPLICAS_MAX = 7
PARTITIONS_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(WebSettings):
    """The settings of `sbp kafka`. Raises ConfigurationError for what cannot work."""

    keeps_credentials: ClassVar[bool] = True
    tls_options: ClassVar[str] = "--listener-cert and --listener-key"

    port: int = port_setting(9092)
    listener_cert: Path | None = path_setting(
        "Speak TLS only, with the certificate in this file, and its chain.",
        "a file in PEM",
        option="--listener-cert",
    )
    listener_key: Path | None = path_setting(
        "Key of that certificate.", "a file in PEM", option="--listener-key"
    )
    advertise_host: str | None = text_setting(
        "Host that clients connect to; the value of host when not set.",
        "a host name or an IP address of this machine",
        default=None,
        option="--advertise-host",
        metavar="HOST",
    )
    topics: tuple[str, ...] = list_setting(
        "Topics that clients see: names, or patterns such as orders-*; all of them when not set.",
        "names or patterns",
        option="--topic",
        metavar="PATTERN",
    )
    partitions: int = integer_setting(
        "Partitions of a topic that is created without saying how many.",
        1,
        PARTITIONS_MAX,
        default=1,
        option="--partitions",
        metavar="COUNT",
    )
    replicas: int = integer_setting(
        "Replicas of a partition that is created without saying how many.",
        1,
        REPLICAS_MAX,
        default=1,
        option="--replicas",
        metavar="COUNT",
    )
    no_auto_create: bool = flag_setting(
        "Whether topics that a client writes to, or asks for, are not created.",
        option="--no-auto-create",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_wildcard(self.host) and self.advertise_host is None:
            raise ConfigurationError(
                f"--host {self.host} is no address to connect to: say with --advertise-host where"
                " clients reach this gateway"
            )
