"""Damage to any file of a data directory: the same bytes are served, or an error names it.

A round damages one file of a log, or of a whole server, by a flip, a cut, an empty or missing file,
a stretch of zeros or bytes at its end. Then everything that was acknowledged is read. A record that
differs is *wrong*; a missing one that no error, refusal or report names is *unnoticed*. Neither may
ever happen.

Most rounds open the log in the process; a sample has `sbp serve` around it.
"""

from __future__ import annotations

import enum
import logging
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sbp_core.client import AppendItem, Client, FetchItem, RetryPolicy, StreamSpec
from sbp_core.errors import LogError, SbpError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.disk import OsDisk
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.recovery.inspection import inspect_log
from sbp_core.log.states.staged_states import staged_entry
from sbp_core.segment_format import EntryKind
from tests.support.cluster import rows_batch, values_of
from tests.support.faults.cluster import FaultCluster
from tests.support.log import batch, commit, created
from tests.support.real_disks import damaged

LOG_ROUNDS = 300
SERVER_ROUNDS = 6
NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 2_000
KEYS = [(1, 0), (2, 0), (3, 0)]
DOOMED = (9, 0)
RECORDS = 20


class Expected(enum.Enum):
    """The expected outcomes of damage to a file."""

    SERVED = "all is served: the file is made again, or not needed"
    NAMED = "all is served, but for what an error, a refusal to start or a report names"


@dataclass(frozen=True, slots=True)
class Kind:
    """Files by their path below the data directory, and the expected outcomes of damage to them."""

    pattern: re.Pattern[str]
    expected: Expected


LOG_FILES = [
    Kind(re.compile(r"\d{20}\.log"), Expected.NAMED),
    Kind(re.compile(r"\d{20}\.idx"), Expected.SERVED),
    Kind(re.compile(r"high-water\.[01]"), Expected.SERVED),
    Kind(re.compile(r"start"), Expected.NAMED),
]
SERVER_FILES = [
    *(
        Kind(re.compile(rf"range-server-\d+/log/{kind.pattern.pattern}"), kind.expected)
        for kind in LOG_FILES
    ),
    Kind(re.compile(r"range-server-\d+/log/(instance|reserve)"), Expected.SERVED),
    Kind(re.compile(r"range-server-\d+/identity\.json"), Expected.NAMED),
]
"""More files belong in here as they are protected, such as those of the placement driver."""


def kind_of(kinds: list[Kind], name: str) -> Kind | None:
    return next((kind for kind in kinds if kind.pattern.fullmatch(name)), None)


def damage(folder: Path, kinds: list[Kind], rng: random.Random) -> tuple[Kind, str]:
    """Damage one of the files; every kind is as likely as any other."""
    files: dict[re.Pattern[str], list[Path]] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        kind = kind_of(kinds, str(path.relative_to(folder)))
        if kind is not None:
            files.setdefault(kind.pattern, []).append(path)
    path = rng.choice(files[rng.choice(sorted(files, key=str))])
    while True:
        what, data = damaged(path.read_bytes(), rng)
        if data is None:
            path.unlink()
        elif data == path.read_bytes():
            continue
        else:
            # In place: a server that has the file open sees it.
            with path.open("r+b") as file:
                file.write(data)
                file.truncate(len(data))
        kind = kind_of(kinds, str(path.relative_to(folder)))
        assert kind is not None
        return kind, f"{path.relative_to(folder)}: {what}"


@dataclass(slots=True)
class Verdicts:
    """The outcomes of the rounds."""

    counts: Counter[str]

    def check(self, kind: Kind, what: str, found: dict, written: dict, named: list[str]) -> None:
        """Raise unless all that is not served as it was `written` is named by something."""
        wrong = {key: value for key, value in found.items() if written.get(key) != value}
        assert not wrong, f"{what}: wrong {wrong}"
        missing = [key for key in written if key not in found]
        assert not missing or named, f"{what}: {len(missing)} lost records are not reported"
        assert not missing or kind.expected is Expected.NAMED, f"{what}: {named}"
        self.counts["named" if named else "served"] += 1


# The log, in this process.


def body_of(key: tuple[int, int], offset: int) -> bytes:
    return b"%d-%d;" % (key[0], offset) * (1 + offset % 17)


def fill_log(folder: Path) -> dict[tuple[int, int], bytes]:
    """Make a log of some segments; return what is in it, by stream and offset."""
    written = {}
    with Log.open(folder, disk=OsDisk(), now_ms=lambda: NOW_MS, segment_bytes=SEGMENT_BYTES) as log:
        log.append([created(*key) for key in (*KEYS, DOOMED)])
        log.append([batch(at, 1, bytes(500), DOOMED) for at in range(6)])
        for offset in range(RECORDS):
            log.append([batch(offset, 1, body_of(key, offset), key) for key in KEYS[:2]])
            log.append([batch(6 + offset, 1, bytes(900 * (offset < 9)), DOOMED)])
            txn_id = f"txn-{offset}"
            key = KEYS[2]
            log.append([staged_entry(*key, txn_id, 0, 1, body_of(key, offset))])
            log.append([commit(log, txn_id, key=key)])
            for each in KEYS:
                written[each[0], offset] = body_of(each, offset)
        log.append([Entry(EntryKind.STREAM_DELETED, DOOMED[0], 0, 0, 0)])
        cleaned = Cleaner(log).clean()
        assert cleaned.removed_count
        assert cleaned.rewritten_count
    return written


def read_log(log: Log) -> tuple[dict[tuple[int, int], bytes], list[str]]:
    """Everything that a log serves, by stream and offset, and the errors on the way."""
    found: dict[tuple[int, int], bytes] = {}
    named = [str(each) for each in log.recovery.damaged_batches]
    for key in KEYS:
        logged = log.maybe_range(key)
        if logged is None:
            continue
        offset = 0
        while offset < logged.next_offset:
            try:
                for slot in log.batches_from(key, offset):
                    bodies = read_bodies(key, [slot])
                    if bodies.error is not None:
                        raise bodies.error
                    found[key[0], slot.base_offset] = bytes(bodies.data[0])
                    offset = slot.end_offset
                break
            except LogError as error:
                named.append(str(error))
                offset += 1
    return found, named


@pytest.fixture(autouse=True)
def few_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sbp_core.log")


@pytest.fixture
def verdicts() -> Iterator[Verdicts]:
    made = Verdicts(Counter())
    yield made
    print(dict(made.counts))
    assert made.counts["named"]
    assert made.counts["served"]


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder where a sync takes no time: thousands of logs are opened and closed."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.timeout(120)
def test_a_damaged_file_of_a_log(
    quick_path: Path, rng: random.Random, rounds: Callable[[int], int], verdicts: Verdicts
) -> None:
    written = fill_log(quick_path / "whole")
    for number in range(rounds(LOG_ROUNDS)):
        folder = copied(quick_path / "whole", quick_path / "log")
        log = None
        is_running = number % 2 == 0
        if is_running:
            log = Log.open(
                folder, disk=OsDisk(), now_ms=lambda: NOW_MS, segment_bytes=SEGMENT_BYTES
            )
            if number % 4 == 0:
                read_log(log)
        kind, what = damage(folder, LOG_FILES, rng)
        named: list[str] = []
        found: dict[tuple[int, int], bytes] = {}
        if log is not None:
            found, named = read_log(log)
            verdicts.check(kind, f"running, {what}", found, written, named)
            log.close()
        else:
            faults = inspect_log(OsDisk(), folder)
            try:
                with Log.open(
                    folder, disk=OsDisk(), now_ms=lambda: NOW_MS, segment_bytes=SEGMENT_BYTES
                ) as opened:
                    found, named = read_log(opened)
            except LogError as error:
                named = [str(error)]
            if len(found) < len(written):
                assert not faults.is_intact, f"{what}: `sbp log check` reports nothing"
            verdicts.check(kind, what, found, written, named)


# A whole server.


def fill_server(cluster: FaultCluster) -> dict[tuple[int, int], bytes]:
    written = {}
    with Client(cluster.endpoint) as client:
        streams = client.create_streams([StreamSpec("a"), StreamSpec("b")])
        for offset in range(RECORDS):
            for stream in streams:
                value = body_of((stream.stream_id, 0), offset)
                client.append([AppendItem(stream.stream_id, rows_batch([value]))])
                written[stream.stream_id, offset] = value
    return written


def read_server(
    cluster: FaultCluster, written: dict[tuple[int, int], bytes]
) -> tuple[dict[tuple[int, int], bytes | None], list[str]]:
    found: dict[tuple[int, int], bytes | None] = {}
    named: list[str] = []
    with Client(cluster.endpoint, retry=RetryPolicy(budget_ms=0)) as client:
        for stream_id, offset in written:
            try:
                (outcome,) = client.fetch([FetchItem(stream_id, offset, None, 1)])
            except SbpError as error:
                named.append(str(error))
                continue
            if outcome.error is not None:
                named.append(str(outcome.error))
                continue
            found |= {(stream_id, at): value for at, value in values_of(outcome.payload)}
    return found, named


def ask_driver(cluster: FaultCluster) -> None:
    with Client(cluster.endpoint, retry=RetryPolicy(budget_ms=0)) as client:
        assert client.list_streams()


@pytest.mark.timeout(240)
def test_a_damaged_file_of_a_server(
    tmp_path: Path, rng: random.Random, rounds: Callable[[int], int], verdicts: Verdicts
) -> None:
    cluster = FaultCluster(tmp_path)
    try:
        cluster.start()
        written = fill_server(cluster)
        cluster.stop()
        shutil.copytree(cluster.data_dir, tmp_path / "whole")
        number = 0
        while number < min(rounds(SERVER_ROUNDS), 200) or len(verdicts.counts) < 2:
            number += 1
            copied(tmp_path / "whole", cluster.data_dir)
            if is_running := number % 2 == 0:
                cluster.start()
            kind, what = damage(cluster.data_dir, SERVER_FILES, rng)
            found: dict[tuple[int, int], bytes | None] = {}
            try:
                if not is_running:
                    cluster.start()
                found, named = read_server(cluster, written)
            except SbpError as error:
                named = [str(error)]
            if is_running and not found:
                ask_driver(cluster)  # each read was refused, by a server that lives
            verdicts.check(kind, what, found, written, named)
            cluster.end()
    finally:
        cluster.end()
