"""`sbp version`, also as `sbp --version`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

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
        help="print the versions of the files and of the protocol, too",
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
    from sbp_core.session.negotiation import REPLICATION_VERSIONS

    replication = ", ".join(map(str, REPLICATION_VERSIONS))
    return [
        f"log          {SEGMENT_VERSION}",
        f"metadata     {SCHEMA_VERSION}, upgraded from {SCHEMA_VERSION_MIN} on",
        "protocol     SBP 0.1",
        f"replication  {replication}",
    ]
