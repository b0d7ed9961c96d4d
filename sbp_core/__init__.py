"""The Streaming Batch Protocol in Python: wire format, client, placement driver, range server."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sbp-spark")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"
