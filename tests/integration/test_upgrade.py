"""Servers and clients of the release before beside those of this one: an upgrade, and the way back.

Two writers append all the time, `sbp produce` of either release. None of their appends fails, and
what they wrote is there once and in order, whichever release serves and reads it.
"""

from __future__ import annotations

import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_core.client import Client, StreamSpec
from sbp_spark.datasource import SbpDataSource
from tests.support.clock import until
from tests.support.machines import Machine, Machines, output, previous_release, this_release

pytestmark = pytest.mark.release

HEARTBEATS = "[range_server]\nheartbeat_interval_ms = 100\n"
LINES = 10
PAUSE_SECONDS = 0.1
"""After each LINES lines, so that `sbp produce` does not wait for more of them."""
END_SECONDS = 60
VALUES = StructType([StructField("value", BinaryType())])
CLEAR = re.compile(r"use the (release|version) that wrote it|newer version wrote it: use that one")
FORMATS = {
    "sbp_core.pd.metadata.tables": "sbp_core.pd.metadata.tables.SCHEMA_VERSION",
    "sbp_core.segment_format": "sbp_core.segment_format.SEGMENT_VERSION,"
    " [*map(int, sbp_core.segment_format.EntryKind)]",
}
"""By module: the versions of files, by which releases can open those of each other or not."""


class Producer:
    """`sbp produce` of a release, which appends 0, 1, 2 and so on until it is finished."""

    def __init__(self, command, endpoint, stream):
        self.count = 0
        self._stopping = threading.Event()
        self._process = subprocess.Popen(
            [*command, "produce", stream, "--endpoint", endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self):
        try:
            while not self._stopping.wait(PAUSE_SECONDS):
                lines = range(self.count, self.count + LINES)
                self._process.stdin.write(b"".join(b"%d\n" % each for each in lines))
                self.count = lines.stop
        except BrokenPipeError:
            pass  # `finish` reports why

    def finish(self):
        """Return how many it appended; all were acknowledged."""
        self._stopping.set()
        self._thread.join(END_SECONDS)
        printed, _ = self._process.communicate(timeout=END_SECONDS)
        assert self._process.returncode == 0, printed
        return self.count

    def kill(self):
        self._stopping.set()
        self._process.kill()
        self._process.wait()
        self._thread.join(END_SECONDS)


class Upgrade:
    """Servers that become those of another release, under two writers."""

    def __init__(self, machines, previous, this, client):
        self.machines, self.client = machines, client
        self.previous, self.this = previous, this
        self._writers = {"previous": previous, "this": this}
        created = client.create_streams([StreamSpec(name, 3) for name in self._writers])
        self._ids = [each.stream_id for each in created]
        self.producers = {
            name: Producer(release.command, machines.endpoint, name)
            for name, release in self._writers.items()
        }

    def change(self, machine, release):
        """Restart a server, in good order, as one of a release; the writers get on.

        Returns whether that release serves its data; if not, it is what it was.
        """
        before = machine.release
        machine.stop()
        machine.release = release.command
        is_served = starts(machine)
        if not is_served:
            machine.release = before
            machine.start()
        self.wait_for_progress()
        return is_served

    def lose_a_primary(self):
        """Kill it; the writers get on without it."""
        placed = self.client.list_ranges(self._ids)[self._ids[0]]
        primary = self.machines.at(placed[-1].servers[0])
        primary.kill()
        self.wait_for_progress()
        primary.start()

    def wait_for_progress(self):
        before = self._ends()
        until(lambda: all(end > before[each] for each, end in self._ends().items()))

    def read_all(self):
        """The numbers in each stream, by name: those of one release are read by the other one."""
        readers = {"previous": self.this, "this": self.previous}
        with ThreadPoolExecutor() as threads:
            found = threads.map(self._read, readers.keys(), readers.values())
            return dict(zip(readers, found, strict=True))

    def _read(self, stream, release):
        words = ["consume", stream, "--endpoint", self.machines.endpoint]
        return [*map(int, output([*release.command, *words]).split())]

    def kill(self):
        for each in self.producers.values():
            each.kill()

    def _ends(self):
        return {each.stream_id: each.next_offset for each in self.client.stream_bounds(self._ids)}


@pytest.fixture(scope="module")
def previous():
    return previous_release()


@pytest.fixture
def upgrade(tmp_path, previous):
    """An upgrade that has not begun."""
    config = tmp_path / "range-server.toml"
    config.write_text(HEARTBEATS)
    words = ["--config", str(config)]
    with (
        Machines(tmp_path, 3, words, release=previous.command) as machines,
        Client(machines.endpoint) as client,
    ):
        begun = Upgrade(machines, previous, this_release(), client)
        try:
            begun.wait_for_progress()
            yield begun
        finally:
            begun.kill()


def write_and_read_with_the_connector(endpoint, stream):
    """A write of a batch, committed, and a read, as Spark has them made but without Spark."""
    values = [b"a", b"b", b"c"]
    sink = SbpDataSource({"endpoint": endpoint, "stream": stream, "createStreams": "true"})
    writer = sink.writer(VALUES, overwrite=False)
    written = writer.write(iter([pa.record_batch({"value": pa.array(values, pa.binary())})]))
    writer.commit([written])
    reader = SbpDataSource({"endpoint": endpoint, "streams": stream}).reader(VALUES)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert pa.Table.from_batches(found).column("value").to_pylist() == values


def check_side_by_side(upgrade, stream):
    """The connector of this release, a fail-over, and readers of either release."""
    write_and_read_with_the_connector(upgrade.machines.endpoint, stream)
    upgrade.lose_a_primary()
    for found in upgrade.read_all().values():
        assert found == [*range(len(found))]
        assert found


@pytest.mark.timeout(400)
def test_an_upgrade_and_the_way_back_one_server_at_a_time(upgrade):
    """The way back ends at a server whose files have a new form, which the older one refuses."""
    machines, this = upgrade.machines, upgrade.this
    write_and_read_with_the_connector(machines.endpoint, "before")
    for machine in machines.servers:
        assert upgrade.change(machine, this)
    check_side_by_side(upgrade, "older-driver")
    assert upgrade.change(machines.driver, this)
    is_back = all(upgrade.change(each, upgrade.previous) for each in machines.servers)
    if is_back:
        check_side_by_side(upgrade, "newer-driver")
        is_back = upgrade.change(machines.driver, upgrade.previous)
    if not is_back:
        assert formats_of(upgrade.previous) != formats_of(this)
    counts = {name: each.finish() for name, each in upgrade.producers.items()}
    assert upgrade.read_all() == {name: [*range(count)] for name, count in counts.items()}


def starts(machine: Machine) -> bool:
    """Whether a server serves; if it does not, its message names the release that does."""
    logged = len(machine.log)
    try:
        machine.start()
    except AssertionError:
        assert CLEAR.search(machine.log[logged:])
        return False
    return True


def formats_of(release):
    return [release.evaluate(*each) for each in FORMATS.items()]
