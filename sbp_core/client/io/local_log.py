"""Large batches in the files of a range server on this machine, read past the server.

A range server may answer a FETCH of a client on its own machine with the places of large batches in
its log. A client is not told by a server what to open: the folder must be one that a server of the
client's own user has registered (local_registry.py), or below one that the client's configuration
names. No other path is looked at, so a server learns nothing about files either. No link is
followed, and only regular files of the same owner are opened.

The file `instance` in the folder must name the cluster of the client's placement driver, and the
address that the client is connected to: otherwise a server could have the client read the log of
another one. Each batch has checksums, which cover its position and its stream as well
(local_batches.py).

Files are removed and rewritten at any time. Batches that cannot be read are fetched as bytes, and
their server is not asked for places for a while. Read first: `LocalLogs`.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from sbp_core import limits
from sbp_core.client.io.local_batches import (
    batch_bytes,
    check_segment,
    checked_place,
    in_pieces,
    read_piece,
)
from sbp_core.client.programs.program import BatchesElsewhere, Call
from sbp_core.client.types import Batches, FetchItem, ReceivedBatches
from sbp_core.errors import (
    ConfigurationError,
    LogError,
    ProtocolError,
    RecordBatchError,
)
from sbp_core.local_registry import FOLDERS_VARIABLE, registered_log
from sbp_core.records import NO_SELECTION, Selection
from sbp_core.segment_format import (
    INSTANCE_BYTES_MAX,
    INSTANCE_NAME,
    encode_instance,
    segment_name,
)
from sbp_core.sockets import wildcard_text
from sbp_core.wire.headers import BatchPlace, FetchRequest, FetchResponse, FetchResult

_LOG: Final = logging.getLogger(__name__)

CAN_READ: Final = hasattr(os, "preadv")
"""Whether this system has the calls that reading needs."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if CAN_READ else 0
"""Opening a FIFO returns at once, so that it can be recognised and refused."""
_SEARCH: Final = getattr(os, "O_PATH", os.O_RDONLY)
"""A folder need not be readable for its files to be, where the system has O_PATH."""
_FOLDER_FLAGS: Final = _SEARCH | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY if CAN_READ else 0
_FILE_OF: Final = attrgetter("segment", "generation")
_COLUMNS_FACTOR: Final = 4
"""With some columns of it a batch is small: several at a time are decoded faster."""
READ_ERRORS: Final = (OSError, LogError, RecordBatchError, ValueError, OverflowError, MemoryError)
"""Errors of the system, of files with other contents, and of places that cannot exist."""


@dataclass(frozen=True, slots=True)
class PlacedBatches:
    """Batches of one range, in the order of their offsets, in the log in `directory`.

    The server at `endpoint` named them. The log must be of the cluster `cluster_id`; "" is none.
    Its server must listen on `address`, and it must be below one of `folders`; without any it must
    be registered. `selection` says what of the batches is not read.
    """

    endpoint: str
    directory: str
    instance: str
    stream_id: int
    range_index: int
    places: tuple[BatchPlace, ...]
    cluster_id: str
    address: str
    folders: tuple[Path, ...] = ()
    selection: Selection = NO_SELECTION


class LocalLogs:
    """Which servers are asked for places, and which logs are read. Threads may share it.

    `get_cluster_id` returns the cluster that the client's placement driver named. `fetch` fetches
    batches of a stream as bytes, at least one; it raises SbpError.
    """

    def __init__(
        self,
        get_cluster_id: Callable[[], str | None],
        fetch: Callable[[FetchItem], ReceivedBatches],
        *,
        pause_ms: float,
        folders: tuple[Path, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fetch: Final = fetch
        self._folders = folders
        self._get_cluster_id = get_cluster_id
        self._pause_ms = pause_ms
        self._clock = clock
        self._off_until_ms: dict[str, float] = {}

    def asking(
        self, call: Call, get_address: Callable[[], str | None]
    ) -> tuple[Call, BatchesElsewhere | None]:
        """Return a call as a FETCH that accepts places, and what makes batches of them.

        Others are returned as they are, as is a FETCH to a server whose files could not be read a
        while ago. `get_address` is called when the server has answered, for the address of the
        server as `sockets.address_text` has it; None if that is another machine.
        """
        now_ms = self._clock() * 1000
        is_off = now_ms < self._off_until_ms.get(call.endpoint, now_ms)
        if is_off or not isinstance(call.header, FetchRequest):
            return call, None
        call = structs.replace(call, header=structs.replace(call.header, takes_places=True))
        return call, partial(self._batches, call, get_address)

    def on_failure(self, endpoint: str) -> None:
        """Accept no places of a server for a while."""
        self._off_until_ms[endpoint] = self._clock() * 1000 + self._pause_ms

    def _batches(
        self,
        call: Call,
        get_address: Callable[[], str | None],
        response: FetchResponse,
        result: FetchResult,
        range_key: tuple[int, int],
    ) -> Batches:
        stream_id, range_index = range_key
        directory, instance = response.log_directory, response.log_instance
        if directory is None or instance is None or result.batch_length:
            raise ProtocolError(
                f"the FETCH answer for stream {stream_id} has places of batches without the log"
                " that they are in, or beside batches"
            )
        if result.places[0].base_offset >= result.next_offset:
            raise ProtocolError(
                f"the FETCH answer for stream {stream_id} has places of batches from offset"
                f" {result.places[0].base_offset}, and goes on at {result.next_offset}"
            )
        placed = PlacedBatches(
            *(call.endpoint, directory, instance, stream_id, range_index, result.places),
            cluster_id=self._get_cluster_id() or "",
            address=get_address() or "",
            folders=self._folders,
            selection=_selection(call, result.request_index),
        )
        reason = _maybe_refusal(placed)
        if reason is not None:
            _LOG.debug(
                "local log not opened: server=%s folder=%.200r reason=%s",
                call.endpoint,
                directory,
                reason,
            )
            self.on_failure(call.endpoint)
        return _LocalBatches(self, placed, result.next_offset, is_admitted=reason is None)


def _selection(call: Call, request_index: int) -> Selection:
    """Return what a FETCH asked of the batches of one of its requests."""
    assert isinstance(call.header, FetchRequest)
    requests = call.header.fetch_requests
    found = (each for each in requests if each.request_index == request_index)
    return next((Selection(each.projections, each.filters) for each in found), NO_SELECTION)


def _maybe_refusal(placed: PlacedBatches) -> str | None:
    if not placed.address:
        return "the address of the connection is not of this machine"
    return None if placed.cluster_id else "the placement driver names no cluster"


class _LocalBatches(Batches):
    """Batches in a log on this machine; those that cannot be read there are fetched as bytes."""

    def __init__(
        self, logs: LocalLogs, placed: PlacedBatches, next_offset: int, *, is_admitted: bool
    ) -> None:
        self.size_bytes = max(1, sum(map(batch_bytes, placed.places)))
        self.next_offset = next_offset
        self._logs = logs
        self._placed = placed
        self._is_admitted = is_admitted

    def pieces(
        self, piece_bytes: int = limits.BATCH_TARGET_BYTES
    ) -> Generator[ReceivedBatches, None, None]:
        """Yield batches of about `piece_bytes`. Raises SbpError where they are not available."""
        placed, position = self._placed, self._placed.places[0].base_offset
        if self._is_admitted:
            read_bytes = piece_bytes * (_COLUMNS_FACTOR if placed.selection.projections else 1)
            try:
                for piece in read_pieces(placed, read_bytes):
                    yield piece
                    position = piece.next_offset
            except READ_ERRORS as error:
                _LOG.debug("local read failed: stream=%d cause=%s", placed.stream_id, error)
                self._logs.on_failure(placed.endpoint)
        while position < self.next_offset:
            item = FetchItem(
                *(placed.stream_id, position, self.next_offset, piece_bytes),
                projections=placed.selection.projections,
                filters=placed.selection.filters,
            )
            fetched = self._logs.fetch(item)
            yield fetched
            position = fetched.next_offset


def configured_folders(given: Sequence[Path | str] | None) -> tuple[Path, ...]:
    """Return the folders that a client is configured to read logs below, without links in them.

    None are those of FOLDERS_VARIABLE, separated like those of PATH; without any, registered logs
    are read. Raises ConfigurationError for a path that is not absolute.
    """
    if given is None:
        given = [each for each in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if each]
    for each in given:
        if not Path(each).is_absolute():
            raise ConfigurationError(
                f"local_folders ({FOLDERS_VARIABLE}): {each!s} is not an absolute path"
            )
    return tuple(Path(each).resolve() for each in given)


def read_pieces(placed: PlacedBatches, piece_bytes: int) -> Iterator[ReceivedBatches]:
    """Yield the batches, checked, with the offsets that they have, about `piece_bytes` at a time.

    A segment is open while those in it are drawn. Raises OSError if the files cannot be opened, and
    LogError if they are another server's, or the batches are not there.
    """
    if not placed.instance.isalnum() or not placed.instance.isascii():
        raise LogError(f"the server named {placed.instance!r:.100} as the instance of its log")
    with _opened_folder(placed) as folder:
        yield from _read_in_folder(folder, placed, piece_bytes)


def _read_in_folder(
    folder: _Folder, placed: PlacedBatches, piece_bytes: int
) -> Iterator[ReceivedBatches]:
    with _opened(INSTANCE_NAME, folder) as descriptor:
        found = os.read(descriptor, INSTANCE_BYTES_MAX)
    start = encode_instance(placed.instance, placed.cluster_id, ()).rstrip()
    if not found.startswith(start + b" "):
        raise LogError(
            f"{placed.directory} is the log of another server or cluster, or of another start of"
            " the server"
        )
    listening = found.removeprefix(start).decode(errors="replace").split()
    if not {placed.address, wildcard_text(placed.address)} & set(listening):
        raise LogError(f"the server of {placed.directory} is not at {placed.address}")
    range_key = placed.stream_id, placed.range_index
    for (segment, generation), places in groupby(map(checked_place, placed.places), _FILE_OF):
        with _opened(segment_name(segment), folder) as descriptor:
            check_segment(descriptor, segment, generation)
            for piece in in_pieces(places, piece_bytes):
                payload = read_piece(descriptor, range_key, piece, placed.selection)
                yield ReceivedBatches(payload, piece[-1].base_offset + piece[-1].record_count)


class _Folder(NamedTuple):
    """An open folder, and the users whose files in it are read."""

    descriptor: int
    owners: frozenset[int]


@contextmanager
def _opened_folder(placed: PlacedBatches) -> Iterator[_Folder]:
    """Open the folder of a log while the body runs, if it is one that may be read.

    Only the name below a folder of the configuration is used of what the server named. Without
    such folders the registry names the folder. Raises OSError, LogError.
    """
    start, names = _maybe_configured(placed) or _registered(placed)
    descriptor = os.open(start, _FOLDER_FLAGS)
    try:
        owners = frozenset({os.geteuid()})
        if placed.folders:
            owners |= {0, os.fstat(descriptor).st_uid}
        for name in names:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if os.fstat(descriptor).st_uid not in owners:
            raise LogError(f"{placed.directory} belongs to another user")
        yield _Folder(descriptor, owners)
    finally:
        os.close(descriptor)


def _maybe_configured(placed: PlacedBatches) -> tuple[Path, tuple[str, ...]] | None:
    """Return a folder of the configuration, and the names below it. None: it has no folders."""
    path = Path(placed.directory)
    for folder in placed.folders:
        if path.is_relative_to(folder) and ".." not in path.parts and "\0" not in placed.directory:
            return folder, path.relative_to(folder).parts
    if placed.folders:
        raise LogError("the server named a log outside of the folders that may be read")
    return None


def _registered(placed: PlacedBatches) -> tuple[Path, tuple[str, ...]]:
    """Return the root, and the names below it of the log that is registered."""
    path = Path(registered_log(placed.instance))
    if str(path) != placed.directory:
        raise LogError("the server named another folder than the one that is registered")
    return Path(path.anchor), path.parts[1:]


@contextmanager
def _opened(name: str, folder: _Folder) -> Iterator[int]:
    """Open a regular file in a folder while the body runs. Raises OSError, LogError."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder.descriptor)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LogError(f"{name} in the folder of the log is no regular file")
        if found.st_uid not in folder.owners:
            raise LogError(f"{name} in the folder of the log belongs to another user")
        yield descriptor
    finally:
        os.close(descriptor)
