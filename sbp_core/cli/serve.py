"""`sbp serve`: a placement driver and range servers on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import click

from sbp_core.cli.server_options import (
    HANG_UP_HELP,
    HOST,
    INSECURE,
    RECORD_BYTES_MAX,
    port_option,
    process_options,
    security_options,
)
from sbp_core.cli.serving import LOG_OPTIONS, Service
from sbp_core.cli.values import INTEGER, PATH

if TYPE_CHECKING:
    from sbp_core.cli.config import ServeSettings
    from sbp_core.cluster import Cluster
    from sbp_core.cluster_settings import ClusterSettings
    from sbp_core.rangeserver.range_server_settings import RangeServerSettings


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


@click.command(
    help="Run a placement driver and range servers, durable in one folder, until SIGTERM or Ctrl-C."
    f"\n\n{HANG_UP_HELP} One range server runs in this process. Several run in a process each: when"
    " one of them ends, all end, and none survives this process. Options win over the configuration"
    " file, and that over the defaults."
)
@click.option(
    "--data-dir", type=PATH, metavar="DIR", help="Folder of all data. [default: sbp-data]"
)
@HOST
@INSECURE
@click.option(
    "--advertise-host",
    metavar="HOST",
    help="Host in the addresses that clients get. [default: --host]",
)
@port_option("--pd-port", "0 picks a free one. [default: 12378]")
@port_option(
    "--range-server-port",
    "First of consecutive ports; 0 picks free ones. [default: 10911]",
)
@click.option("--range-servers", type=INTEGER, help="Range servers to run. [default: 1]")
@RECORD_BYTES_MAX
@security_options
@process_options("conf/server.toml")
def serve(**given: Any) -> int:
    """Run them until a signal."""
    return SERVE.run(given)
