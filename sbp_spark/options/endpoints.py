"""Options of both sides about the cluster: endpoint, connection, and tables of metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sbp_core.client import Credentials, Tls, parse_endpoints
from sbp_core.errors import ConfigurationError
from sbp_core.limits import ISOLATION_CLASS_LENGTH_MAX, OUTAGE_MS
from sbp_spark.options.declaring import (
    DURATION,
    Given,
    Kind,
    OptionReader,
    named,
    option,
    reads,
    word,
    words,
)

TABLE_REMEDY: Final = (
    "Spark keeps no options of a table, so name them at each use: SELECT * FROM t WITH (endpoint ="
    " 'host:port', streams = 'NAME'), INSERT INTO t WITH (endpoint = 'host:port', stream = 'NAME')"
)


def _parse_endpoints(given: Given) -> tuple[str, ...] | None:
    try:
        return parse_endpoints(given.text)
    except ConfigurationError as error:  # its text never shows a password
        given.faults.append(f"{given.name} is wrong: {error}")
        return None


_ENDPOINT: Final = option(
    "endpoint",
    Kind(_parse_endpoints),
    (),
    unset="required",
    kafka="kafka.bootstrap.servers",
).doc(
    "Placement driver to ask, host:port; an IPv6 address is written in brackets. Several of one"
    " cluster are separated by commas; a placement driver that is down is passed over."
)


def _read_endpoints(reader: OptionReader) -> tuple[str, ...]:
    remedy = f'add .option("endpoint", "host:port" of the placement driver); {TABLE_REMEDY}'
    return reader.required(_ENDPOINT, remedy)


def _parse_file(given: Given) -> str | None:
    if "\0" not in given.text:
        return given.text
    given.refuse("the path of a file")
    return None


def _parse_variable(given: Given) -> str | None:
    if _VARIABLE.fullmatch(given.text):
        return given.text
    # The fault does not show the value, which may be the token itself.
    given.refuse("the name of an environment variable, such as SBP_TOKEN", "is no name")
    return None


_VARIABLE: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE: Final = Kind(_parse_file)
_TLS_CA: Final = option("tlsCaFile", _FILE, None, unset="none").doc(
    "File with the authorities of the servers' certificates, in PEM: connect with TLS. The driver"
    " and the tasks open the path themselves, on their own machines."
)
_TLS_CERT: Final = option("tlsCertFile", _FILE, None, unset="none", needs="tlsKeyFile").doc(
    "File with the certificate to show to servers that want one, and its chain, in PEM."
)
_TLS_KEY: Final = option("tlsKeyFile", _FILE, None, unset="none", needs="tlsCertFile").doc(
    "File with the key of the certificate in tlsCertFile, in PEM, not encrypted."
)
_TLS_FILES: Final = (_TLS_CA, _TLS_CERT, _TLS_KEY)


def _read_tls(reader: OptionReader) -> Tls | None:
    """Return the files of TLS; None to connect without it."""
    ca_file, cert_file, key_file = map(reader.value, _TLS_FILES)
    is_whole = (cert_file is None) == (key_file is None)
    return Tls(ca_file, cert_file, key_file) if is_whole and (ca_file or cert_file) else None


_TOKEN_FILE: Final = option("tokenFile", _FILE, None, unset="none", needs="tlsCaFile").doc(
    "File with the token that says who the client is, to servers that want to know. The driver and"
    " the tasks open the path themselves, on their own machines, again before the token ends: so"
    " replace the file before that. Needs tlsCaFile."
)
_TOKEN_ENV: Final = option(
    "tokenEnv", Kind(_parse_variable), None, unset="none", needs="tlsCaFile"
).doc("Name of an environment variable of the driver and the workers with the token instead.")
_SECURITY: Final = (*_TLS_FILES, _TOKEN_FILE, _TOKEN_ENV)


def _read_credentials(reader: OptionReader) -> Credentials | None:
    """Return where the token is; None to connect without one."""
    token_file, token_env = map(reader.value, (_TOKEN_FILE, _TOKEN_ENV))
    reader.check_single((_TOKEN_FILE, _TOKEN_ENV))
    is_usable = (token_file is None) != (token_env is None) and reader.is_given(_TLS_CA.name)
    return Credentials(token_file, token_env) if is_usable else None


def _parse_history(given: Given) -> str | None:
    if "\0" in given.text or not given.text.strip():
        given.refuse("off, auto, the name of a catalog or the folder of a warehouse")
        return None
    return "" if given.text.lower() == "off" else given.text


def _parse_retry(given: Given) -> float | None:
    return math.inf if given.text.lower() == "off" else DURATION.parse(given)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a cluster: where its placement drivers are, and how to talk to them.

    `isolation_class` "" is the class of readers that name no class; `history` "" reads no tables.
    """

    endpoints: tuple[str, ...] = field(metadata=reads(_read_endpoints, _ENDPOINT))
    is_compressed: bool = option(
        "networkCompression", words({"none": False, "zstd": True}), False
    ).field(
        "How records travel between Spark's workers and the range servers: none, or zstd, which"
        " saves bandwidth and costs processor time. A server without compression gets none."
    )
    isolation_class: str = option(
        "isolationClass",
        named(ISOLATION_CLASS_LENGTH_MAX),
        "",
        unset="none",
        side="source",
    ).field(
        "Name of a class of readers, such as backfill: a range server divides its reads fairly"
        " between classes, so that none of them waits behind the backlog of another."
    )
    retry_ms: float = option(
        "retryTimeout", Kind(_parse_retry, lambda ms: DURATION.show(int(ms))), float(OUTAGE_MS)
    ).field(
        "How long a read or a write is retried while servers are down, such as 30m, or `off`: until"
        " they are back. After 10 s the cause is in the log (`sbp_spark`, `sbp_core.client`), and"
        " a line when it is over."
    )
    history: str = option("history", Kind(_parse_history), "", unset="off", side="source").field(
        "Where the tables are in which streams have landed (`sbp lake`): the name of a catalog in"
        " the configuration of PyIceberg, `auto` for its default catalog, or the folder of"
        " `--warehouse`, with a slash in it. Records that a stream's log no longer has are read"
        " from its table then, as if they were in the log: positions, `columns` and `where` apply"
        " alike. The driver and the tasks open the catalog; a stream without a table is read as"
        " with `off`."
    )
    tls: Tls | None = field(default=None, metadata=reads(_read_tls, *_TLS_FILES))
    credentials: Credentials | None = field(
        default=None, metadata=reads(_read_credentials, _TOKEN_FILE, _TOKEN_ENV)
    )

    def __str__(self) -> str:
        return ",".join(self.endpoints)


def _read_servers(reader: OptionReader) -> Servers:
    endpoints = _read_endpoints(reader)
    return Servers(endpoints, tls=_read_tls(reader), credentials=_read_credentials(reader))


class CatalogTable(Enum):
    """Values of the option `table`."""

    STREAMS = "streams"
    RANGES = "ranges"
    CURSORS = "cursors"


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Which table of which cluster is read."""

    servers: Servers = field(metadata=reads(_read_servers, _ENDPOINT, *_SECURITY))
    table: CatalogTable = option(
        "table", word(CatalogTable), CatalogTable.STREAMS, unset="none"
    ).field(
        "Instead of records, what the placement driver knows: `streams`, `ranges` or `cursors` (of"
        " consumer groups); a value is null if the range server that has it is down. In batch reads"
        " only, and beside endpoint, the options of TLS and the token only."
    )


def is_table_given(options: Mapping[str, str]) -> bool:
    """Whether metadata are to be read, not records."""
    return any(key.lower() == "table" for key in options)
