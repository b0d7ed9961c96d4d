"""Readers on this machine: they are told where large batches are, and read the files themselves.

Who may open the files of the log, as a process of the same user may, can read it without the
server, which then copies and checks nothing. So a FETCH that says that places will do, and that
comes from this machine, is answered with these. Whether it is the same file system, too, the
reader finds out: the log's folder holds a file with the server's instance, which the answer names,
and with the cluster, which the reader knows.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.log.disk import Disk, describe_os_error, write_file
from sbp_core.log.segment_rows import Slot
from sbp_core.rangeserver.fetching.batch_finder import Answer, response_of
from sbp_core.segment_format import INSTANCE_NAME, encode_instance
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.headers import BatchPlace, FetchRequest, FetchResponse

_LOG: Final = logging.getLogger(__name__)


class LocalReads:
    """The log of this start of the server, for readers that can open its files.

    There are none before `publish`.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._instance = uuid.uuid4().hex
        self._maybe_path: str | None = None

    def publish(self, cluster_id: str | None) -> None:
        """Let readers know the log, which is of this cluster.

        Where that cannot be written, or the directory be told, or the cluster has no id, readers
        are served like all others.
        """
        path = self._directory / INSTANCE_NAME
        if cluster_id is None:
            _LOG.debug("readers on this machine go through the server: the cluster has no id")
            return
        try:
            directory = str(self._directory.resolve())
            directory.encode()
            content = encode_instance(self._instance, cluster_id)
            write_file(self._disk, path, [content], is_durable=False)
        except UnicodeEncodeError:
            _LOG.warning(
                "readers on this machine go through the server: %r is no text", self._directory
            )
        except OSError as error:
            _LOG.warning(
                "readers on this machine go through the server: writing %s failed: %s",
                path,
                describe_os_error(error),
            )
        else:
            self._maybe_path = directory

    def may_serve(self, call: ServerCall, request: FetchRequest) -> bool:
        """Whether places will do for who asks."""
        if self._maybe_path is None:
            return False
        if call.agreement.isolation:  # it takes turns with other classes, which files do not
            return False
        return request.takes_places and call.is_from_this_host and not call.is_one_frame

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
            log_directory=self._maybe_path,
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
