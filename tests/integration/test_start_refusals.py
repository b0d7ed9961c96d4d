"""`sbp serve` on damaged, older, exchanged or missing folders: each message has a working remedy.

A refused start either recommends a command, and the next start works after it; or it reports that
nothing can be repaired, and what to restore. A way to go on without works, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.errors import SbpError
from sbp_core.pd.metadata.sqlite_tables import connect
from sbp_core.segment_format import with_checksum
from tests.support.cluster import rows_batch
from tests.support.warm import WarmCluster

DRIVER, SERVER = "placement-driver", "range-server-0"
COMMAND: Final = re.compile(r"`sbp ((?:pd accept|log repair) [^`]+)`")
RECORDS = 20


@dataclass(frozen=True, slots=True)
class Copies:
    """Data folders of clusters that were stopped: the newest, what it was before, another one."""

    newest: Path
    older: Path
    other: Path


Damage = Callable[[Path, Copies], object]
"""Done to a copy of the newest folder."""


def add_stream(cluster: WarmCluster, name: str) -> None:
    with Client(cluster.endpoint) as client:
        (stream,) = client.create_streams([StreamSpec(name)])
        for _ in range(RECORDS):
            client.append([AppendItem(stream.stream_id, rows_batch([b"x" * 100]))])


def serve_and_add(folder: Path, name: str) -> None:
    with WarmCluster(folder) as cluster:
        add_stream(cluster, name)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    folder = tmp_path_factory.mktemp("copies")
    made = Copies(folder / "newest", folder / "older", folder / "other")
    serve_and_add(made.newest, "a")
    shutil.copytree(made.newest, made.older)
    serve_and_add(made.newest, "b")
    WarmCluster(made.newest).start().stop()  # the range server learns the last commits
    serve_and_add(made.other, "z")
    return made


def refusal(folder: Path) -> str:
    """Return what a start is refused with."""
    cluster = WarmCluster(folder)
    with pytest.raises(SbpError) as caught:
        cluster.start()
    return str(caught.value).splitlines()[-1]


def put_back(part: str, source: str) -> Damage:
    """Replace a part of the folder by that of a copy."""

    def put(folder: Path, copies: Copies) -> None:
        copy = getattr(copies, source) / part
        if copy.is_dir():
            shutil.rmtree(folder / part)
            shutil.copytree(copy, folder / part)
        else:
            shutil.copy(copy, folder / part)

    return put


def removed(*parts: str) -> Damage:
    def remove(folder: Path, _: Copies) -> None:
        for part in parts:
            if (folder / part).is_dir():
                shutil.rmtree(folder / part)
            else:
                (folder / part).unlink()

    return remove


def cut(part: str, length: int = 0) -> Damage:
    return lambda folder, _: os.truncate(folder / part, length)


def overwritten(part: str, place: int, data: bytes) -> Damage:
    def overwrite(folder: Path, _: Copies) -> None:
        with (folder / part).open("r+b") as file:
            file.seek(place)
            file.write(data)

    return overwrite


def changed_row(folder: Path, _: Copies) -> None:
    database = folder / DRIVER / "metadata.sqlite"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.create_function("row_checksum", -1, lambda *_: b"other", deterministic=True)
        connection.execute("UPDATE streams SET retention_bytes = 7")


def cut_log(folder: Path, _: Copies) -> None:
    """Cut what was synced, and remove the note of its position beside the log."""
    segment = max((folder / SERVER / "log").glob("*.log"))
    os.truncate(segment, segment.stat().st_size - 500)
    for note in (folder / SERVER / "log").glob("high-water.*"):
        note.unlink()


def all_of(*damages: Damage) -> Damage:
    def damage(folder: Path, copies: Copies) -> None:
        for each in damages:
            each(folder, copies)

    return damage


METADATA, MARK = f"{DRIVER}/metadata.sqlite", f"{DRIVER}/metadata.mark"

REPAIRED: Final[dict[str, tuple[Damage, str]]] = {
    "a row was changed": (changed_row, "is damaged: table streams"),
    "the metadata are older": (put_back(DRIVER, "older"), "are an older copy"),
    "the metadata are older than their mark": (
        put_back(METADATA, "older"),
        r"commit \d+ of life \S+ was the last one, the store ends at commit",
    ),
    "the mark is missing": (removed(MARK), "it is missing"),
    "the mark is emptied": (cut(MARK), "it is damaged"),
    "the mark is damaged": (overwritten(MARK, 0, bytes(600)), "it is damaged"),
    "the range server is older": (put_back(SERVER, "older"), "bytes are missing"),
    "the log is older": (put_back(f"{SERVER}/log", "older"), "bytes are missing"),
    "the log is shorter": (cut_log, "bytes are missing"),
}
"""By what happened: the message, which recommends a command that helps."""

LOST: Final[dict[str, tuple[Damage, str, str]]] = {
    "the metadata are emptied": (cut(METADATA), "holds no metadata", DRIVER),
    "the metadata and their mark are emptied": (
        all_of(cut(METADATA), cut(MARK)),
        "holds no metadata",
        DRIVER,
    ),
    "the metadata are missing": (removed(METADATA), "holds no metadata", DRIVER),
    "the placement driver's folder is missing": (removed(DRIVER), "holds no metadata", DRIVER),
    "the metadata are cut": (cut(METADATA, 5000), "cannot be opened", DRIVER),
    "the metadata are no database": (
        overwritten(METADATA, 0, b"xxxx"),
        "is not a database",
        DRIVER,
    ),
    "the metadata are of another cluster": (
        put_back(DRIVER, "other"),
        "this is cluster .* and the peer is of .* restore the right data directory",
        DRIVER,
    ),
    "the range server is of another cluster": (
        put_back(SERVER, "other"),
        "this is cluster .* and the peer is of .* restore the right data directory",
        SERVER,
    ),
    "the identity is of another cluster": (
        put_back(f"{SERVER}/identity.json", "other"),
        "this is cluster .* and the peer is of .* restore the right data directory",
        SERVER,
    ),
    "the log is missing": (
        removed(f"{SERVER}/log"),
        "the log of range server 1 is missing",
        SERVER,
    ),
    "the log is of another server": (
        put_back(f"{SERVER}/log", "other"),
        "another log is in its folder; restore the right one",
        SERVER,
    ),
    "the identity is missing": (
        removed(f"{SERVER}/identity.json"),
        "put it back from a copy",
        SERVER,
    ),
    "the identity is damaged": (
        cut(f"{SERVER}/identity.json", 5),
        "put it back from a copy",
        SERVER,
    ),
}
"""By what happened: the message, which names what to put back, and what that is."""


@pytest.fixture
def folder(tmp_path: Path, copies: Copies) -> Iterator[Path]:
    yield shutil.copytree(copies.newest, tmp_path / "my data")
    shutil.rmtree(tmp_path / "my data")


@pytest.mark.parametrize("state", REPAIRED)
def test_the_command_of_a_message_helps(state: str, folder: Path, copies: Copies) -> None:
    damage, message = REPAIRED[state]
    damage(folder, copies)
    output = refusal(folder)
    assert re.search(message, output)
    (command,) = COMMAND.findall(output)
    assert main(shlex.split(command)) == 0
    serve_and_add(folder, "new")


@pytest.mark.parametrize("state", LOST)
def test_files_that_cannot_be_repaired_are_put_back(
    state: str, folder: Path, copies: Copies
) -> None:
    damage, message, part = LOST[state]
    damage(folder, copies)
    output = refusal(folder)
    assert re.search(message, output)
    assert COMMAND.findall(output) == []
    if part == DRIVER:
        assert main(["pd", "check", str(folder)]) != 0
        assert main(["pd", "accept", str(folder)]) == 2
    if state in {"the metadata are cut", "the identity is of another cluster"}:  # one of each part
        shutil.rmtree(folder / part)
        shutil.copytree(copies.newest / part, folder / part)
        serve_and_add(folder, "new")


@pytest.mark.parametrize(
    "state", ["the log is missing", "the log is of another server", "the identity is damaged"]
)
def test_a_lost_range_server_starts_as_a_new_one(state: str, folder: Path, copies: Copies) -> None:
    damage, _, _ = LOST[state]
    damage(folder, copies)
    output = refusal(folder)
    assert "delete and create again the streams that had ranges in it" in output
    if named := re.search(r"remove (.+) to start as a new server", output):
        Path(named[1]).unlink()
    else:
        assert re.search(r"move .+ away to start as a new server", output)
        (folder / SERVER).rename(folder / "away")
    with WarmCluster(folder) as cluster:
        with Client(cluster.endpoint) as client:
            client.delete_streams([1, 2])
        add_stream(cluster, "a")


def newer_log(folder: Path) -> None:
    (path,) = (folder / SERVER / "log").glob("*.log")
    with path.open("r+b") as file:
        common = file.read(20)
        file.seek(0)
        file.write(with_checksum(common[:8] + struct.pack(">I", 99) + common[12:]))


def newer_metadata(folder: Path) -> None:
    database = folder / DRIVER / "metadata.sqlite"
    with contextlib.closing(connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '99'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (newer_log, r"format version 99, this version reads 2"),
        (newer_metadata, r"schema version 99, this release reads 11 and \d+"),
    ],
)
def test_files_of_a_newer_release_are_refused(
    change: Callable[[Path], None], message: str, folder: Path
) -> None:
    change(folder)
    assert re.search(message, refusal(folder))
