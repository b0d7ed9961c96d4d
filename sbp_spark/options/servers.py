"""Where the servers are, and how to talk to them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from sbp_core.limits import ISOLATION_CLASS_LENGTH_MAX
from sbp_spark.options.reading import OptionReader, shown

TABLE_REMEDY: Final = (
    "Spark keeps no options of a table, so name them at each use: SELECT * FROM t WITH (endpoint ="
    " 'host:port', streams = 'NAME'), INSERT INTO t WITH (endpoint = 'host:port', stream = 'NAME')"
)
_HOST_LENGTH_MAX: Final = 253
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_ISOLATION_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{ISOLATION_CLASS_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address; `host` is a name or an address, IPv6 without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a cluster: where its placement driver is, and how to talk to them.

    `isolation_class` "" is the class of those that name none. With `reads_locally` the logs of
    servers on the same machine are read from their files.
    """

    endpoint: Endpoint
    is_compressed: bool = False
    isolation_class: str = ""
    reads_locally: bool = True

    def __str__(self) -> str:
        return str(self.endpoint)


class _WrongAddressError(Exception):
    """An address that cannot be used: what is wrong with it, and the remedy."""

    def __init__(self, wrong: str, remedy: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.remedy = remedy


def read_endpoint(reader: OptionReader) -> Endpoint | None:
    """Return the option `endpoint`, None after a fault."""
    expected = "host:port of the placement driver"
    remedy = f'add .option("endpoint", ...); {TABLE_REMEDY}'
    text = reader.required_text("endpoint", expected, remedy)
    if text is None:
        return None
    try:
        return _parse_endpoint(text)
    except _WrongAddressError as error:
        reader.add_fault("endpoint", error.wrong, expected, error.remedy)
        return None


def _parse_endpoint(text: str) -> Endpoint:
    if "@" in text:  # may hold a password, so it is not shown
        raise _WrongAddressError("has an '@'", "leave out user and password")
    if "://" in text:
        raise _WrongAddressError(f"is the URL {shown(text)}", "leave out the scheme and '://'")
    if "," in text:
        raise _WrongAddressError(f"is the list {shown(text)}", "name one placement driver")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise _WrongAddressError(f"{shown(text)} has no port", "append ':' and the port")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _WrongAddressError(f"has the port {shown(port)}", "give a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            return Endpoint(str(ipaddress.IPv6Address(host[1:-1])), int(port))
        except ValueError:
            raise _WrongAddressError(
                f"has in brackets {shown(host[1:-1])}, which is no IPv6 address", "correct it"
            ) from None
    if ":" in host:
        raise _WrongAddressError(
            f"{shown(text)} has several colons", "put an IPv6 address in brackets: [::1]:port"
        )
    if len(host) > _HOST_LENGTH_MAX or not _HOST.fullmatch(host):
        raise _WrongAddressError(f"has the host {shown(host)}", "give a host name or address")
    return Endpoint(host, int(port))


def read_compression(reader: OptionReader) -> bool:
    """Return whether records travel compressed."""
    return reader.choice("networkCompression", ("none", "zstd"), "none") == "zstd"


def read_isolation_class(reader: OptionReader) -> str:
    """Return the name of the class of readers, "" for none."""
    text = reader.maybe_text("isolationClass") or ""
    if text and not _ISOLATION_NAME.fullmatch(text):
        reader.add_fault(
            "isolationClass",
            f"is {shown(text)}",
            f"1 to {ISOLATION_CLASS_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -",
            "correct it, or leave it out",
        )
    return text
