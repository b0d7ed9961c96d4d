"""The payload of a FETCH answer: bytes of batches, or the places where a local client reads them.

Bodies come from memory where the log keeps them, else verified from the disk (log/bodies.py), or
only some of their columns (selected_reads.py). Small ones are joined into one buffer.

A process that may open the files of the log can read them without the server, which then copies and
checks nothing. So a FETCH that accepts places, and that comes from this machine, is answered with
places if the batches are large. The reader opens no folder because a server names it: it looks the
log up among those that servers of its own user have registered, or its configuration names. There a
file has the server's instance, which the answer names, the cluster, which the reader knows, and the
addresses of the server, to one of which it is connected.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.local_registry import FOLDERS_VARIABLE, Registration, registry_path
from sbp_core.log.bodies import RecentBody, read_bodies
from sbp_core.log.disk import Disk, describe_os_error, write_file
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.rangeserver.fetching.batch_finder import Answer, response_of
from sbp_core.rangeserver.fetching.selected_reads import are_worth_parts, as_sent, read_selected
from sbp_core.records import NO_SELECTION, Selection
from sbp_core.segment_format import INSTANCE_NAME, encode_instance
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.checksum import Buffer, crc32_joined
from sbp_core.wire.headers import BatchPlace, FetchRequest, FetchResponse

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotBodies:
    """The bytes of the first `slot_count` slots, in buffers worth sending one by one.

    `error` says why the next slot could not be read. `crc32` is that of all buffers, None where it
    is not known without reading them.
    """

    buffers: tuple[Buffer, ...]
    slot_count: int
    error: LogError | None
    crc32: int | None


def joined(parts: Iterable[SlotBodies]) -> tuple[list[Buffer], int | None]:
    """Return the buffers of a payload in their order, and its CRC-32 if it is known."""
    buffers: list[Buffer] = []
    crc32: int | None = 0
    for part in parts:
        buffers += part.buffers
        if crc32 is not None and part.crc32 is not None:
            crc32 = crc32_joined(crc32, part.crc32, sum(map(len, part.buffers)))
        else:
            crc32 = None
    return buffers, crc32


def read_slots(
    log: Log,
    key: RangeKey,
    slots: Sequence[Slot],
    selection: Selection = NO_SELECTION,
    *,
    may_wait: bool = True,
) -> SlotBodies:
    """Return the bodies of `slots` as they are sent, up to the first that cannot be read.

    Unless it `may_wait` for the disk, that is also the first one that is not in memory. Parts
    that the `selection` leaves out are neither sent nor, in large batches on the disk, read.
    """
    recent: Sequence[RecentBody] = ()
    if (
        selection != NO_SELECTION
        and are_worth_parts(slots)
        and log.recent.maybe_bodies(slots) is None
    ):
        parts, error = read_selected(key, slots, selection, may_wait=may_wait)
    else:
        bodies = read_bodies(key, slots, log.recent, may_wait=may_wait)
        stored = zip(slots, bodies.data, strict=False)  # fewer if one cannot be read
        parts = [as_sent(slot, body, selection) for slot, body in stored]
        error = bodies.error
        if all(sent[0] is body for sent, body in zip(parts, bodies.data, strict=True)):
            recent = bodies.recent
    slot_count, buffers = len(parts), list(chain.from_iterable(parts))
    if isinstance(error, LogCorruptionError):
        log.suspects.add(slots[slot_count].view.segment.base)
    if sum(map(len, buffers)) < slot_count * limits.FETCH_JOIN_BYTES:
        buffers = [b"".join(buffers)]
        recent = ()
    return SlotBodies(tuple(buffers), slot_count, error, _joined_crc32(recent))


def _joined_crc32(recent: Sequence[RecentBody]) -> int | None:
    if not recent:
        return None
    joined = 0
    for body in recent:
        joined = crc32_joined(joined, body.crc32, len(body.data))
    return joined


class LocalReads:
    """The log of this start of the server, for readers that can open its files.

    There are none before `publish`.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._instance = uuid.uuid4().hex
        self._path: str | None = None
        self._registration: Registration | None = None

    def publish(self, cluster_id: str | None, addresses: Sequence[str]) -> None:
        """Let local readers find the log of this cluster, of a server that has these addresses.

        If that cannot be written, or the path is not text, or the cluster has no id, readers on
        this machine are served like all others.
        """
        path = self._directory / INSTANCE_NAME
        if cluster_id is None:
            _LOG.debug("local reads off: the cluster has no id")
            return
        try:
            directory = str(self._directory.resolve())
            directory.encode()
            content = encode_instance(self._instance, cluster_id, addresses)
            write_file(self._disk, path, [content], is_durable=False)
        except UnicodeEncodeError:
            _LOG.warning("local reads off: the path %r is not valid UTF-8", self._directory)
        except OSError as error:
            reason = describe_os_error(error)
            _LOG.warning("local reads off: writing %s failed: %s", path, reason)
        else:
            self._path = directory
            self._register(directory)

    def _register(self, directory: str) -> None:
        """Let clients without any setting find it; those that name the folder need no entry."""
        try:
            self._registration = Registration(directory, self._instance)
        except OSError as error:
            _LOG.warning(
                "local reads only by folder folder=%s variable=%s registry=%s: %s; clients have to"
                " name the folder in the variable",
                *(directory, FOLDERS_VARIABLE, registry_path(), describe_os_error(error)),
            )

    def withdraw(self) -> None:
        """Let no reader find the log any longer."""
        if self._registration is not None:
            self._registration.end()

    def may_serve(self, call: ServerCall, request: FetchRequest) -> bool:
        """Whether a request may be answered with places."""
        return (
            self._path is not None
            and request.takes_places
            and call.peer.is_from_this_host
            and not call.is_one_frame
            and not call.agreement.isolation  # reads of files take no turns with other classes
        )

    def response(self, answers: Sequence[Answer]) -> FetchResponse:
        """Return the header of a frame that says where the batches are."""
        response = response_of(answers)
        results = [
            replace(result, batch_length=0, places=tuple(map(_place, answer.slots)))
            for result, answer in zip(response.fetch_responses, answers, strict=True)
        ]
        return replace(
            response,
            fetch_responses=tuple(results),
            log_directory=self._path,
            log_instance=self._instance,
        )


def are_worth_places(answers: Sequence[Answer]) -> bool:
    """Whether batches are so large that they are not read faster as one payload."""
    slots = [slot for answer in answers for slot in answer.slots]
    batch_bytes = sum([slot.body_length for slot in slots])
    return batch_bytes >= max(1, len(slots) * limits.LOCAL_READ_BATCH_BYTES_MIN)


def _place(slot: Slot) -> BatchPlace:
    segment = slot.view.segment
    return BatchPlace(
        segment.base,
        segment.generation,
        slot.location.position,
        slot.location.length,
        slot.prefix_bytes,
        slot.base_offset,
        slot.count,
    )
