"""The options of `sbp serve`."""

from __future__ import annotations

import argparse
import signal

from sbp_core.cli.parsers.base import AddParser
from sbp_core.cli.parsers.texts import parse_integer, parse_path


def add_serve(add_parser: AddParser) -> None:
    """Add `sbp serve`."""
    serve = add_parser(
        "serve",
        help="run a placement driver and range servers",
        description="Run a placement driver and range servers, durable in one folder, until"
        " SIGTERM or Ctrl-C; SIGHUP is logged and changes nothing. Options win over the"
        " configuration file, and that over the defaults.",
    )
    add = serve.add_argument
    add("--data-dir", type=parse_path, metavar="DIR", help="folder of all data (default: sbp-data)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--advertise-host", metavar="HOST", help="host that clients are told (default: --host)")
    add(
        "--dialect",
        metavar="NAME",
        help="specification or elasticstream-2023-04 (default: specification)",
    )
    add("--pd-port", type=parse_integer, metavar="PORT", help="0 picks a free one (default: 12378)")
    add(
        "--range-server-port",
        type=parse_integer,
        metavar="PORT",
        help="first of consecutive ports; 0 picks free ones (default: 10911)",
    )
    add(
        "--range-servers", type=parse_integer, metavar="N", help="range servers to run (default: 1)"
    )
    add(
        "--ready-file",
        type=parse_path,
        metavar="PATH",
        help="JSON file with the endpoints; there while the server serves",
    )
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: warning)")
    add(
        "--config",
        type=parse_path,
        metavar="PATH",
        help="settings in TOML; conf/server.toml names all of them",
    )
    add(
        "--until-stdin-closes",
        action="store_true",
        help="also stop when standard input, a pipe, ends: for programs that start a server",
    )
    serve.set_defaults(run=_run_serve)


def _run_serve(options: argparse.Namespace) -> int:
    # Blocked before the imports start threads, which inherit that: a hang-up never ends a server.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from sbp_core.cli.serve import serve

    return serve(options)
