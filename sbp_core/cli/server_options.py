"""The options of the commands that run servers."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from sbp_core import limits
from sbp_core.cli.parsing import parse_integer, parse_path

_TLS_OPTIONS: Final = {
    "--tls-cert": "speak TLS only, with the certificate in this file, and its chain",
    "--tls-key": "key of the certificate",
    "--tls-ca": "authorities of the certificates of the cluster's servers",
    "--tls-client-ca": "authorities of the certificates that clients then have to show",
}
_AUTH_OPTIONS: Final = {
    "--auth-admin": (
        "SUBJECT",
        "administrator; with it every request needs an identity; repeatable",
    ),
    "--auth-server": (
        "SUBJECT",
        "server of the cluster (default: the subject of --tls-cert); repeatable",
    ),
    "--auth-monitor": (
        "SUBJECT",
        "reader of the metrics at --admin-port, and of nothing else; repeatable",
    ),
    "--auth-jwks-file": ("PATH", "public keys of the issuer of tokens, a JSON Web Key Set"),
    "--auth-jwks-url": ("URL", "https URL of these keys instead"),
    "--auth-issuer": ("TEXT", "issuer that tokens have to name"),
    "--auth-audience": ("TEXT", "audience that tokens have to name"),
}
HANG_UP_HELP: Final = (
    "SIGHUP reads the files of TLS and of keys again, quotas, and level and form of the log in the"
    " configuration file; and it opens the files of the log and of the audit trail again."
)


def add_record_bytes_max(parser: ArgumentParser) -> None:
    """Declare `--record-bytes-max` of a command that runs range servers."""
    parser.add_argument(
        "--record-bytes-max",
        type=parse_integer,
        metavar="BYTES",
        help=f"largest record that is accepted, {limits.RECORD_BYTES_MAX} to"
        f" {limits.RECORD_BYTES_LARGEST} (default: {limits.RECORD_BYTES_MAX})",
    )


def add_insecure(parser: ArgumentParser) -> None:
    """Declare `--insecure` of every command that runs servers."""
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="listen where other machines connect to, though all that do can read, write and delete"
        " everything",
    )


def add_security_options(parser: ArgumentParser) -> None:
    """Declare the files of TLS, and the identities, of a command that runs servers."""
    add = parser.add_argument
    for option, help_text in _TLS_OPTIONS.items():
        add(
            option,
            dest=f"tls_{option.removeprefix('--tls-').replace('-', '_')}_file",
            type=parse_path,
            metavar="PATH",
            help=help_text,
        )
    add(
        "--tls-client-certificates",
        metavar="WHEN",
        help="required, or optional for clients with a token (default: required)",
    )
    for option, (metavar, help_text) in _AUTH_OPTIONS.items():
        dest = option.removeprefix("--").replace("-", "_")
        if metavar == "SUBJECT":
            add(option, dest=f"{dest}s", action="append", metavar=metavar, help=help_text)
        else:
            kind = parse_path if metavar == "PATH" else str
            add(option, dest=dest, type=kind, metavar=metavar, help=help_text)


def add_process_options(parser: ArgumentParser, conf: str) -> None:
    """Declare the options of every command that runs servers; `conf` has all of its settings."""
    add = parser.add_argument
    add(
        "--ready-file",
        type=parse_path,
        metavar="PATH",
        help="JSON file with the endpoints; it exists while the server serves",
    )
    add(
        "--admin-port",
        type=parse_integer,
        metavar="PORT",
        help="port of health, readiness, metrics and settings over HTTP; 0 picks a free one"
        " (default: none)",
    )
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: warning)")
    add("--log-format", metavar="FORM", help="text, or json for an object per line (default: text)")
    add(
        "--log-file",
        type=parse_path,
        metavar="PATH",
        help="file to append the log to (default: standard error)",
    )
    add(
        "--audit-file",
        type=parse_path,
        metavar="PATH",
        help="file to append management operations to, as lines of JSON (default: the log, at level"
        " info)",
    )
    add(
        "--config",
        type=parse_path,
        metavar="PATH",
        help=f"settings in TOML; {conf} names all of them",
    )
    add(
        "--quotas-file",
        type=parse_path,
        metavar="PATH",
        help="file with the section [quotas], read again at SIGHUP (default: that of --config)",
    )
    add(
        "--until-stdin-closes",
        action="store_true",
        help="also stop when standard input, a pipe, ends: for programs that start a server",
    )
