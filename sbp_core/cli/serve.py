"""`sbp serve`: a placement driver and range servers on this machine."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from sbp_core.cli.parsing import parse_integer, parse_path
from sbp_core.cli.server_options import (
    HANG_UP_HELP,
    add_insecure,
    add_process_options,
    add_record_bytes_max,
    add_security_options,
)
from sbp_core.cli.serving import LOG_OPTIONS, Service

if TYPE_CHECKING:
    from sbp_core.cli.config import ServeSettings
    from sbp_core.cluster import Cluster
    from sbp_core.cluster_settings import ClusterSettings
    from sbp_core.rangeserver.range_server_settings import RangeServerSettings


def add_serve(parser: ArgumentParser) -> None:
    """Declare `sbp serve`."""
    parser.description = (
        "Run a placement driver and range servers, durable in one folder, until SIGTERM or Ctrl-C."
        f" {HANG_UP_HELP} One range server runs in this process. Several run in a process each:"
        " when one of them ends, all end, and none survives this process."
        " Options win over the configuration file, and that over the defaults."
    )
    add = parser.add_argument
    add("--data-dir", type=parse_path, metavar="DIR", help="folder of all data (default: sbp-data)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add_insecure(parser)
    add(
        "--advertise-host",
        metavar="HOST",
        help="host in the addresses that clients get (default: --host)",
    )
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
    add_record_bytes_max(parser)
    add_security_options(parser)
    add_process_options(parser, "conf/server.toml")
    parser.set_defaults(run=SERVE.run)


def _make(settings: ServeSettings[ClusterSettings], stop: Callable[[], None]) -> Cluster:
    from sbp_core.cluster import Cluster
    from sbp_core.processes import RangeServerProcess

    if settings.servers.range_servers == 1:
        return Cluster(settings.servers)
    port = settings.admin_port
    admin_ports = count(port + 1) if port > 0 else repeat(port)

    def make_process(server: RangeServerSettings) -> RangeServerProcess:
        return RangeServerProcess(
            server,
            log_options={name: getattr(settings, name) for name in LOG_OPTIONS},
            admin_port=next(admin_ports),
            on_stopped=stop,
        )

    return Cluster(settings.servers, make_process=make_process)


def _describe(cluster: Cluster, found: list[list[str]]) -> tuple[dict[str, Any], list[str]]:
    endpoints = cluster.endpoints
    lines = [f"placement driver  {endpoints.pd}"]
    for index, (endpoint, notes) in enumerate(zip(endpoints.range_servers, found, strict=True)):
        lines += [f"range server {index}    {each}" for each in (endpoint, *notes)]
    content = asdict(endpoints)
    if cluster.admin_endpoints:
        content["range_server_admins"] = cluster.admin_endpoints
    for index, endpoint in enumerate(cluster.admin_endpoints):
        lines.append(f"range server {index}    admin {endpoint}")
    return content, lines


SERVE = Service("SERVE", _make, _describe)
