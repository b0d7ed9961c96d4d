"""The answers of a range's servers to SEAL_RANGE, and what follows from them: where it ends.

A range on one server ends where that server says. A range with several replicas is replicated, and
ends by the rules of `sbp_core.replication`: SEAL_RANGE is its fence, and the answers of enough
servers that are not damaged decide.
"""

from __future__ import annotations

from typing import Final

from sbp_core.errors import (
    DeadlineExceededError,
    ProtocolError,
    SbpError,
    SealUnansweredError,
    StatusCode,
    StatusError,
    TransportError,
)
from sbp_core.pd.model import SealedRange
from sbp_core.peers.driver_calls import server_addresses
from sbp_core.replication import DIGEST_BYTES, FenceAnswer, Prefix, answers_needed, decided_end
from sbp_core.wire.headers import SealRangesResult, StreamRange

UNREACHABLE: Final = (TransportError, DeadlineExceededError)


class Fence:
    """The seal of one range, at all its servers.

    Servers at the same address are one process, so it has one answer.
    """

    def __init__(self, sealing: StreamRange) -> None:
        self._range = sealing
        self._server_ids: dict[str, int] = {}
        for address, each in zip(server_addresses(sealing), sealing.servers, strict=False):
            if each.server is not None:
                self._server_ids.setdefault(address, each.server.server_id)
        self._waits_for = set(server_addresses(sealing))
        self._answers: dict[str, SealRangesResult] = {}
        self._errors: dict[str, SbpError] = {}

    @property
    def is_replicated(self) -> bool:
        """Whether the range has several replicas."""
        return len(self._range.servers) > 1

    @property
    def is_over(self) -> bool:
        """Whether its end is decided, or no server will answer any more."""
        return not self._waits_for or self.maybe_end() is not None

    @property
    def silent_ids(self) -> set[int]:
        """The servers of a range with several replicas that have not answered yet."""
        return {
            self._server_ids[each]
            for each in self._waits_for
            if self.is_replicated and each in self._server_ids
        }

    @property
    def unreachable_ids(self) -> set[int]:
        """The servers of a range with several replicas that the seal did not reach."""
        return {
            self._server_ids[address]
            for address, error in self._errors.items()
            if self.is_replicated and isinstance(error, UNREACHABLE)
        }

    def add(self, address: str, answer: SealRangesResult | SbpError) -> None:
        """Note what the server at an address answered, or why it did not."""
        if isinstance(answer, SealRangesResult) and self.is_replicated:
            answer = _maybe_fault(answer) or answer
        self._waits_for.discard(address)
        if isinstance(answer, SbpError):
            self._errors[address] = answer
        else:
            self._answers[address] = answer

    def maybe_end(self) -> SealedRange | SbpError | None:
        """Return where the range ends; None while that is not decided.

        The error is of an end that cannot be: its server is broken.
        """
        if self.is_replicated:
            decided = self._maybe_decided()
        else:
            decided = next(iter(self._answers.values()), None)
        if decided is None:
            return None
        found, stream_id = decided.stream_range, self._range.stream_id
        end = -1
        if found is not None:
            end = found.next_offset if self.is_replicated else found.end_offset
        if end < self._range.start_offset:
            (address,) = (each for each, answer in self._answers.items() if answer is decided)
            return StatusError(
                StatusCode.PD_INTERNAL,
                f"the server at {address} sealed range {self._range.range_index} of stream"
                f" {stream_id} at an end before its start: {found}; see the log of that server",
            )
        sealed = SealedRange(stream_id, self._range.range_index, end, decided.writers)
        if not self.is_replicated:
            return sealed
        return sealed._replace(end_seq=decided.seq, end_digest=decided.digest)

    def refusal(self) -> SbpError:
        """Return why the range cannot be sealed: too few of its servers answered."""
        name = f"range {self._range.range_index} of stream {self._range.stream_id}"
        if not self.is_replicated:
            ((address, error),) = self._errors.items()
            return SealUnansweredError.of(
                f"{name} cannot be sealed now: its server at {address or 'an unknown address'} does"
                f" not answer as expected ({error}); retry when it is reachable"
            )
        needed = answers_needed(len(self._range.servers), self._range.ack_count)
        damaged = [each for each, answer in self._answers.items() if answer.is_damaged]
        missing = [
            f"{address or 'an unknown address'} does not answer as expected ({error})"
            for address, error in self._errors.items()
        ] + [f"{address} lost entries that it once had" for address in damaged]
        return SealUnansweredError.of(
            f"{name} cannot be sealed now: {needed} of its {len(self._range.servers)} servers have"
            f" to answer with all their entries, and {len(self._answers) - len(damaged)} did."
            f" {'; '.join(missing)}. Retry when more of them are reachable"
        )

    def _maybe_decided(self) -> SealRangesResult | None:
        """Return an answer whose prefix is the decided one, with the writers if one has them."""
        whole = [each for each in self._answers.values() if not each.is_damaged]
        end = decided_end(
            (FenceAnswer(_prefix(each), is_whole=True) for each in whole),
            len(self._range.servers),
            self._range.ack_count,
        )
        equal = [each for each in whole if _prefix(each) == end]
        return max(equal, key=lambda each: bool(each.writers), default=None)


def _prefix(answer: SealRangesResult) -> Prefix:
    return Prefix(answer.seq, bytes(answer.digest))


def _maybe_fault(answer: SealRangesResult) -> SbpError | None:
    """Return why no replica can have answered that."""
    has_digest = len(answer.digest) == (DIGEST_BYTES if answer.seq else 0)
    if answer.stream_range is not None and answer.seq >= 0 and has_digest:
        return None
    return ProtocolError(
        f"a replica answers with its entries, not with {answer.seq} of them and a digest of"
        f" {len(answer.digest)} bytes"
    )
