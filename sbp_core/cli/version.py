"""`sbp version`, also as `sbp --version`."""

from __future__ import annotations

import platform
from importlib import import_module, metadata

import click

from sbp_core import __version__
from sbp_core.cli.client_options import json_option
from sbp_core.cli.output import write_json, write_lines


@click.command()
@click.option(
    "--verbose",
    is_flag=True,
    help="Print the versions of the files, of the protocol and of what it runs on, too.",
)
@json_option
def version(*, verbose: bool, json: bool) -> int:
    """Print the version that is installed here; `sbp --version` does the same.

    A server runs the version that was installed when it was started.
    """
    found = _formats() if verbose else {}
    if json:
        write_json({"sbp": __version__} | found)
    else:
        write_lines([f"sbp {__version__}", *(f"{name:12} {each}" for name, each in found.items())])
    return 0


def _formats() -> dict[str, str]:
    """Return the versions on which two releases have to agree."""
    from sbp_core.pd.metadata.tables import SCHEMA_VERSION, SCHEMA_VERSION_BEFORE
    from sbp_core.segment_format import SEGMENT_VERSION
    from sbp_core.session.negotiation import REPLICATION_VERSIONS, FeatureName

    return {
        "log": str(SEGMENT_VERSION),
        "metadata": f"{SCHEMA_VERSION}, upgraded from {SCHEMA_VERSION_BEFORE}",
        "checkpoint": _checkpoint_versions(),
        "protocol": "SBP 0.1",
        "features": ", ".join(FeatureName),
        "replication": ", ".join(map(str, REPLICATION_VERSIONS)),
        "python": platform.python_version(),
        "pyarrow": _installed("pyarrow"),
        "pyspark": _installed("pyspark"),
        "platform": platform.platform(),
    }


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
