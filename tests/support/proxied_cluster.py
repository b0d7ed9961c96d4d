"""A server and its clients with a proxy between them: one for each of its ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_cluster import FaultCluster
from fault_proxy import FaultProxy


@dataclass(frozen=True, slots=True)
class ProxiedCluster:
    """Clients connect to `endpoint`; all that they and the placement driver say to the range
    server goes through a proxy too, because that is what it advertises."""

    cluster: FaultCluster
    to_placement_driver: FaultProxy
    to_range_server: FaultProxy

    @property
    def endpoint(self) -> str:
        return self.to_placement_driver.endpoint

    @property
    def proxies(self) -> tuple[FaultProxy, FaultProxy]:
        return self.to_placement_driver, self.to_range_server

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()


@contextmanager
def proxied_cluster(folder: Path, alterations: Sequence[str] = ()) -> Iterator[ProxiedCluster]:
    """Start a server behind proxies."""
    with ExitStack() as resources:
        driver_proxy, server_proxy = (resources.enter_context(FaultProxy()) for _ in range(2))
        advertised = {"range_server": {"advertise_port": server_proxy.port}}
        cluster = resources.enter_context(
            FaultCluster(folder, settings=advertised, alterations=alterations)
        )
        driver_proxy.target = cluster.endpoint
        server_proxy.target = f"127.0.0.1:{cluster.listening_port}"
        yield ProxiedCluster(cluster, driver_proxy, server_proxy)
