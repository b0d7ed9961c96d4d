"""`sbp pd check`, `accept` and `move`: the metadata of a stopped placement driver."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from sbp_core.cli import output
from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.history import NO_COMMIT, CommitId, is_life_id
from sbp_core.pd.metadata.sqlite_inspection import (
    DRIVER_NAME,
    StoreReport,
    Witness,
    accept_store,
    check_store,
    find_store,
)
from sbp_core.pd.metadata.store import data_dir_of, is_shared
from sbp_core.rangeserver.server_id import DRIVER_COMMIT_NAME, load_identity, read_driver_commit
from sbp_core.wording import counted

_SERVERS: Final = "range-server-*"


def check(folder: str, *, is_json: bool) -> int:
    """Read all metadata; return 1 if they are damaged or older than they were."""
    if is_shared(folder):
        return _check_database(folder, is_json=is_json)
    directory = find_store(data_dir_of(folder))
    report = check_store(directory, _witnesses(directory))
    if is_json:
        _show_json(report)
    else:
        _show(report)
        if report.faults:
            output.write_line(f"  {report.remedy}")
    return 1 if report.faults else 0


def accept(folder: str, *, is_json: bool) -> int:
    """Let a placement driver start with metadata that are damaged, or older than they were."""
    if is_shared(folder):
        return _accept_database(folder, is_json=is_json)
    directory = find_store(data_dir_of(folder))
    report = accept_store(directory, _witnesses(directory))
    if is_json:
        _show_json(report)
        return 0
    _show(report)
    if not report.faults:
        output.write_line("  the metadata are intact: nothing was changed")
    else:
        output.write_line(
            "  accepted: missing commits are lost, and new ids start far above the old ones"
        )
    return 0


def move(folder: str, url: str, *, is_json: bool) -> int:
    """Copy the metadata in a folder to a database."""
    from sbp_core.pd.metadata.postgresql import shown_url
    from sbp_core.pd.metadata.postgresql_offline import move_to_database

    if not is_shared(url):
        raise ConfigurationError(f"--to {url}: expected postgresql://USER@HOST:PORT/DATABASE")
    directory = find_store(data_dir_of(folder))
    counts = move_to_database(directory, url, _witnesses(directory))
    output.write_result(
        {"folder": str(directory), "store": shown_url(url), "rows": counts},
        f"{counted(sum(counts.values()), 'row')} copied from {directory} to {shown_url(url)}: from"
        " now on start placement drivers with --store",
        is_json=is_json,
    )
    return 0


def _check_database(url: str, *, is_json: bool) -> int:
    from sbp_core.pd.metadata.postgresql import shown_url
    from sbp_core.pd.metadata.postgresql_offline import check_database

    report = check_database(url)
    commit, leader, row_count = report.commit, report.leader, sum(report.row_counts.values())
    if is_json:
        output.write_json(
            {
                "store": shown_url(url),
                "is_intact": True,
                "schema_version": report.version,
                "rows": report.row_counts,
                "commit": commit.number,
                "life": commit.life_id or None,
                "term": leader.term,
                "leader": leader.address if leader.is_leading else None,
            }
        )
        return 0
    leading = f"{leader.name} at {leader.address} leads" if leader.is_leading else "none leads"
    output.write_line(
        f"{shown_url(url)}: schema version {report.version},"
        f" {counted(len(report.row_counts), 'table')}, {counted(row_count, 'row')}, {commit}; term"
        f" {leader.term}, {leading}"
    )
    return 0


def _accept_database(url: str, *, is_json: bool) -> int:
    from sbp_core.pd.metadata.postgresql import shown_url
    from sbp_core.pd.metadata.postgresql_offline import accept_database

    lost_after = accept_database(url)
    output.write_result(
        {"store": shown_url(url), "accepted_after": str(lost_after)},
        f"{shown_url(url)}: accepted after {lost_after}: missing commits are lost, and new ids"
        " start far above the old ones",
        is_json=is_json,
    )
    return 0


def _witnesses(directory: Path) -> list[Witness]:
    """Return what the range servers of the same `sbp serve` know of the metadata."""
    witnesses: list[Witness] = []
    if directory.name != DRIVER_NAME:
        return witnesses
    for folder in sorted(directory.absolute().parent.glob(_SERVERS)):
        number, life = read_driver_commit(folder / DRIVER_COMMIT_NAME)
        commit = CommitId(number, life) if life is not None and is_life_id(life) else NO_COMMIT
        cluster_id = ""
        with contextlib.suppress(ConfigurationError):  # the start of that server names it
            identity = load_identity(folder)
            cluster_id = "" if identity is None else identity.cluster_id
        witnesses.append(Witness(folder, cluster_id, commit))
    return witnesses


def _show(report: StoreReport) -> None:
    counts, commit = report.row_counts, report.commit
    if report.page_faults or report.content_faults:
        verdict = "damaged"
    elif report.history_faults:
        verdict = "older than it was" if report.version else "emptied"
    else:
        verdict = "of another cluster" if report.foreign_servers else "intact"
    output.write_line(
        f"{report.database}: {verdict}; schema version {report.version},"
        f" {counted(len(counts), 'table')}, {counted(sum(counts.values()), 'row')}, {commit};"
        f" by metadata.mark {report.marked}"
    )
    for line in (*report.faults, *report.notes):
        output.write_line(f"  {line}")


def _show_json(report: StoreReport) -> None:
    output.write_json(
        {
            "file": str(report.database),
            "is_intact": not report.faults,
            "schema_version": report.version,
            "rows": report.row_counts,
            "commit": report.commit.number,
            "life": report.commit.life_id or None,
            "marked_commit": report.marked.number,
            "marked_life": report.marked.life_id or None,
            "damage": [*report.page_faults, *report.content_faults],
            "missing_commits": list(report.history_faults),
            "other_clusters": list(report.foreign_servers),
            "notes": list(report.notes),
            "remedy": report.remedy if report.faults else None,
        }
    )
