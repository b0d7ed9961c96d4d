"""`sbp --version`, and with `--verbose` the versions on which two releases have to agree."""

from __future__ import annotations

import platform
from importlib import import_module, metadata
from typing import Final

import click

from sbp_core import __version__
from sbp_core.cli.output import write_lines


def _show(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:  # noqa: FBT001 - as click calls it
    """Print the version that is installed here, and end the command."""
    if is_wanted:
        found = _formats() if context.params.get("verbose") else {}
        write_lines([f"sbp {__version__}", *(f"{name:12} {each}" for name, each in found.items())])
        context.exit()


VERSION_OPTIONS: Final = (
    click.Option(
        ["--version"], is_flag=True, expose_value=False, callback=_show, help="Print the version."
    ),
    click.Option(
        ["--verbose"],
        is_flag=True,
        is_eager=True,  # known when `--version` prints
        help="With --version, also the versions of files, of the protocol and of what it runs on.",
    ),
)


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
