"""`sbp pd`: is the metadata of a stopped placement driver intact, and going on with it as it is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from sbp_core.cli import output
from sbp_core.pd.history import CommitId, is_life_id
from sbp_core.pd.store_check import (
    DRIVER_NAME,
    StoreReport,
    Witness,
    accept_store,
    check_store,
    find_store,
)
from sbp_core.rangeserver.driver_commit import DRIVER_COMMIT_NAME, read_driver_commit

_SERVERS: Final = f"range-server-*/{DRIVER_COMMIT_NAME}"


def check(options: Namespace) -> int:
    """Read all metadata; return 1 if they are damaged or older than they were."""
    directory = find_store(Path(options.folder))
    report = check_store(directory, _witnesses(directory))
    if options.json:
        _show_json(report)
    else:
        _show(report)
    return 0 if report.is_intact else 1


def accept(options: Namespace) -> int:
    """Let a placement driver start with metadata that are damaged, or older than they were."""
    directory = find_store(Path(options.folder))
    report = accept_store(directory, _witnesses(directory))
    _show(report)
    if report.is_intact:
        output.write_line("  nothing to accept: nothing was changed")
    else:
        output.write_line(
            "  accepted as it is: what is missing is lost, and new ids go on far above the old ones"
        )
    return 0


def _witnesses(directory: Path) -> list[Witness]:
    """Return what the range servers of the same `sbp serve` were told of the metadata."""
    witnesses: list[Witness] = []
    if directory.name != DRIVER_NAME:
        return witnesses
    for path in sorted(directory.absolute().parent.glob(_SERVERS)):
        number, life = read_driver_commit(path)
        if life is not None and is_life_id(life):
            witnesses.append(Witness(path, CommitId(number, life)))
    return witnesses


def _show(report: StoreReport) -> None:
    found = report.found
    counts = found.row_counts
    verdict = "intact" if report.is_intact else "damaged"
    if found.history_faults and not (found.page_faults or found.content_faults):
        verdict = "older than it was"
    output.write_line(
        f"{report.database}: {verdict}; schema version {found.version}, {len(counts)} tables,"
        f" {sum(counts.values())} rows, {found.commit}; by metadata.mark {report.marked}"
    )
    for line in (*found.faults, *report.notes):
        output.write_line(f"  {line}")


def _show_json(report: StoreReport) -> None:
    found = report.found
    output.write_json(
        {
            "file": str(report.database),
            "is_intact": report.is_intact,
            "schema_version": found.version,
            "rows": found.row_counts,
            "commit": found.commit.number,
            "life": found.commit.life_id or None,
            "marked_commit": report.marked.number,
            "marked_life": report.marked.life_id or None,
            "damage": [*found.page_faults, *found.content_faults],
            "missing_commits": list(found.history_faults),
            "notes": list(report.notes),
        }
    )
