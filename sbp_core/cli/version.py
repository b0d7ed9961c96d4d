"""`sbp version`, also as `sbp --version`."""

from __future__ import annotations

import platform
from argparse import ArgumentParser, Namespace
from importlib import import_module, metadata

from sbp_core import __version__
from sbp_core.cli.output import write_lines


def add_version(parser: ArgumentParser) -> None:
    """Declare `sbp version`."""
    parser.description = (
        "Print the version that is installed here; `sbp --version` does the same. A server runs the"
        " version that was installed when it was started."
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print the versions of the files, of the protocol and of what it runs on, too",
    )
    parser.set_defaults(run=version)


def version(options: Namespace) -> int:
    """Print the versions."""
    lines = [f"sbp {__version__}"]
    if options.verbose:
        lines += _formats()
    write_lines(lines)
    return 0


def _formats() -> list[str]:
    """Return the versions on which two releases have to agree, one per line."""
    from sbp_core.pd.metadata.tables import SCHEMA_VERSION, SCHEMA_VERSION_MIN
    from sbp_core.segment_format import SEGMENT_VERSION
    from sbp_core.session.negotiation import REPLICATION_VERSIONS, FeatureName
    from sbp_core.wire.dialect import Dialect

    found = {
        "log": str(SEGMENT_VERSION),
        "metadata": f"{SCHEMA_VERSION}, upgraded from {SCHEMA_VERSION_MIN} on",
        "checkpoint": _checkpoint_versions(),
        "protocol": "SBP 0.1",
        "dialects": ", ".join(Dialect),
        "features": ", ".join(FeatureName),
        "replication": ", ".join(map(str, REPLICATION_VERSIONS)),
        "python": platform.python_version(),
        "pyarrow": _installed("pyarrow"),
        "pyspark": _installed("pyspark"),
        "platform": platform.platform(),
    }
    return [f"{name:12} {value}" for name, value in found.items()]


def _checkpoint_versions() -> str:
    """Return the versions of source offsets, which the connector knows, if its packages are there.

    By name, as nothing in the core knows the connector.
    """
    try:
        offsets = import_module("sbp_spark.reading.offsets")
    except ImportError:
        return "not installed"
    return f"{offsets.FORMAT_VERSION}, read from 1 on"


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
