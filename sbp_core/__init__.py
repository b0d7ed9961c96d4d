"""The Streaming Batch Protocol in Python: wire format, client, placement driver, range server."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

try:
    __version__ = version("sbp-spark")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"

if TYPE_CHECKING:
    from sbp_core.app import connect

__all__ = ["connect"]


def __getattr__(name: str) -> object:
    """Import the client when it is asked for: servers and commands import this package too."""
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("sbp_core.app").connect
