"""The options of commands that run servers. One that is not given is None, or an empty tuple."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import click

from sbp_core import limits
from sbp_core.cli.values import INTEGER, PATH

Run: TypeAlias = Callable[..., int]
Declare: TypeAlias = Callable[[Run], Run]

HANG_UP_HELP: Final = (
    "SIGHUP reads the files of TLS and of keys again, quotas, and level and form of the log in the"
    " configuration file; and it opens the files of the log and of the audit trail again."
)


def port_option(name: str, about: str) -> Declare:
    """Return an option that is a port."""
    return click.option(name, type=INTEGER, metavar="PORT", help=about)


def path_option(name: str, about: str, *attribute: str) -> Declare:
    """Return an option that is a path, given as `attribute`."""
    return click.option(name, *attribute, type=PATH, help=about)


def declared(options: Sequence[Declare]) -> Declare:
    """Return a decorator that declares options, in this order."""

    def declare(run: Run) -> Run:
        for option in reversed(options):
            run = option(run)
        return run

    return declare


def _subject_option(name: str, attribute: str, about: str) -> Declare:
    return click.option(name, attribute, multiple=True, metavar="SUBJECT", help=about)


HOST: Final = click.option(
    "--host", metavar="HOST", help="Address to listen on. [default: 127.0.0.1]"
)
INSECURE: Final = click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Listen where other machines connect to, though all that do can read, write and delete"
    " everything.",
)
RECORD_BYTES_MAX: Final = click.option(
    "--record-bytes-max",
    type=INTEGER,
    metavar="BYTES",
    help=f"Largest record that is accepted, {limits.RECORD_BYTES_MAX} to"
    f" {limits.RECORD_BYTES_LARGEST}. [default: {limits.RECORD_BYTES_MAX}]",
)
READY_FILE: Final = path_option(
    "--ready-file", "JSON file with the endpoints; it exists while the server serves."
)
LOG_FILE: Final = path_option("--log-file", "File to append the log to. [default: standard error]")

security_options: Final = declared(
    [
        path_option(
            "--tls-cert",
            "Speak TLS only, with the certificate in this file, and its chain.",
            "tls_cert_file",
        ),
        path_option("--tls-key", "Key of the certificate.", "tls_key_file"),
        path_option(
            "--tls-ca", "Authorities of the certificates of the cluster's servers.", "tls_ca_file"
        ),
        path_option(
            "--tls-client-ca",
            "Authorities of the certificates that clients then have to show.",
            "tls_client_ca_file",
        ),
        click.option(
            "--tls-client-certificates",
            metavar="WHEN",
            help="required, or optional for clients with a token. [default: required]",
        ),
        _subject_option(
            "--auth-admin",
            "auth_admins",
            "Administrator; with it every request needs an identity; repeatable.",
        ),
        _subject_option(
            "--auth-server",
            "auth_servers",
            "Server of the cluster; repeatable. [default: the subject of --tls-cert]",
        ),
        _subject_option(
            "--auth-monitor",
            "auth_monitors",
            "Reader of the metrics at --admin-port, and of nothing else; repeatable.",
        ),
        path_option("--auth-jwks-file", "Public keys of the issuer of tokens, a JSON Web Key Set."),
        click.option("--auth-jwks-url", metavar="URL", help="https URL of these keys instead."),
        path_option("--auth-jwks-ca-file", "Authorities of the certificate at that URL."),
        click.option("--auth-issuer", metavar="TEXT", help="Issuer that tokens have to name."),
        click.option("--auth-audience", metavar="TEXT", help="Audience that tokens have to name."),
    ]
)
"""Declares the files of TLS, and the identities."""


def server_options(port: int) -> Declare:
    """Return what declares the options of one server, whose default port is `port`."""
    return declared(
        [
            click.option(
                "--data-dir",
                type=PATH,
                metavar="DIR",
                help="Folder of its data; required, here or in the file.",
            ),
            HOST,
            INSECURE,
            port_option("--port", f"Port to listen on; 0 picks a free one. [default: {port}]"),
            click.option(
                "--advertise",
                metavar="HOST:PORT",
                help="Where others reach it; sets advertise_host and advertise_port. [default:"
                " --host and --port]",
            ),
        ]
    )


def process_options(conf: str) -> Declare:
    """Return what declares the options of every command that runs servers.

    `conf` is the file with all of its settings.
    """
    return declared(
        [
            READY_FILE,
            port_option(
                "--admin-port",
                "Port of health, readiness, metrics and settings over HTTP; 0 picks a free one."
                " [default: none]",
            ),
            click.option(
                "--log-level",
                metavar="LEVEL",
                help="debug, info, warning or error. [default: warning]",
            ),
            click.option(
                "--log-format",
                metavar="FORM",
                help="text, or json for an object per line. [default: text]",
            ),
            LOG_FILE,
            path_option(
                "--audit-file",
                "File to append management operations to, as lines of JSON. [default: the log, at"
                " level info]",
            ),
            path_option("--config", f"Settings in TOML; {conf} names all of them."),
            path_option(
                "--quotas-file",
                "File with the section [quotas], read again at SIGHUP. [default: that of --config]",
            ),
            click.option(
                "--until-stdin-closes",
                is_flag=True,
                help="Also stop when standard input, a pipe, ends: for programs that start a"
                " server.",
            ),
        ]
    )
