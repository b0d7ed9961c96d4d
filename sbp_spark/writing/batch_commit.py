"""The end of a write: one decision for everything that its tasks have staged, commit or abort.

A write that replaces older records trims them when its own rows can be read. The tasks report where
the streams that they write to ended before the commit. So the trim never removes a row of the write
itself, whenever and however often it is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from sbp_core import limits
from sbp_core.client import Client, TxnDecision, TxnPart
from sbp_core.errors import (
    ConfigurationError,
    HeaderError,
    SbpError,
    TxnAbortedError,
    UnsupportedError,
)
from sbp_core.failpoints import failpoint
from sbp_core.wording import counted
from sbp_spark.options.sink import BatchKey, OnReplayMismatch
from sbp_spark.spark_internals.task_log import LOG
from sbp_spark.writing.digest import are_comparable, encode_digest, join_digests
from sbp_spark.writing.directory import check_still_plain


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """The acknowledged writes of one task. `size_bytes` counts encoded batches.

    `record_count` includes dead letters.
    """

    partition_id: int
    record_count: int
    batch_count: int
    size_bytes: int
    stream_count: int
    skipped_count: int
    dead_letter_count: int


@dataclass(frozen=True)
class StagedMessage(WrittenMessage):
    """The parts that a task staged: (transaction id, stream id, range index, records, batches).

    `tails`, if older records are to be trimmed: (stream id, its end before the commit).
    """

    producer: str
    batch_number: int
    parts: tuple[tuple[str, int, int, int, int], ...]
    digest: int
    tails: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> BatchKey:
        """The batch that it was staged for."""
        return BatchKey(self.producer, self.batch_number)

    def txn_parts(self) -> list[TxnPart]:
        """Return the staged parts."""
        return [TxnPart(*part) for part in self.parts]


class IncompleteWriteError(SbpError):
    """A task did not report its staged parts."""


class ReplayMismatchError(SbpError):
    """A batch was committed before, with other rows."""


class LateCommitError(SbpError):
    """A batch was not committed, as one with a larger number was before it."""


def commit_staged(
    client: Client,
    messages: Sequence[WriterCommitMessage | None],
    key: BatchKey,
    on_mismatch: OnReplayMismatch,
    *,
    parts_max: int = limits.TXN_PARTS_MAX,
) -> TxnDecision:
    """Commit the parts that the tasks' messages name, lower partitions first.

    Return the decision, which may be an earlier one. Its lost rows are logged as an error. Rows of
    other attempts of the tasks are in no message, and never become visible. May be repeated.

    Raises SbpError if nothing is decided or the outcome is not known: then call it again.
    ReplayMismatchError: other rows were committed before, and that is to fail. LateCommitError: a
    later batch is committed, this batch has rows, and its decision is no longer known.
    IncompleteWriteError: a message is missing.
    """
    staged = all_staged(messages)
    staged.sort(key=lambda message: message.partition_id)
    record_count = sum(message.record_count for message in staged)
    digest = 0
    for message in staged:
        digest = join_digests(digest, message.digest)
    parts = [part for message in staged for part in message.txn_parts()]
    if len(parts) > parts_max:
        limit = f"{parts_max} are allowed"
        raise _too_many_parts(key, len(staged), len(parts), limit)
    failpoint("sink.before_commit")
    try:
        decision = client.commit_txn(
            key.producer,
            key.batch_number,
            parts,
            record_count=record_count,
            digest=encode_digest(digest),
        )
    except UnsupportedError as error:
        if len(parts) > limits.STREAMS_PER_REQUEST_MAX:
            raise _too_many_parts(key, len(staged), len(parts), str(error)) from None
        raise no_transactions(error) from error
    except HeaderError as error:
        raise _too_many_parts(key, len(staged), len(parts), str(error)) from None
    except TxnAbortedError as error:
        error.add_note(
            f"{key}: its staged rows were given up before the commit, so nothing is committed;"
            " write it again, which a streaming query does when it is restarted"
        )
        raise
    failpoint("sink.committed")
    if decision.is_replay:
        check_replay(decision, key, record_count, encode_digest(digest), on_mismatch)
    if decision.lost:
        LOG.error(
            "%s is committed, but lost_rows=%d were given up: `sbp txns %s` shows where",
            key,
            sum(part.record_count for part in decision.lost),
            key.producer,
        )
    if not decision.is_published:
        LOG.info("%s is committed; its rows are still being published", key)
    LOG.debug("committed %s: %d records, replay: %s", key, record_count, decision.is_replay)
    return decision


def check_plain_parts(client: Client, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise SchemaError if a stream that plain rows were staged for has got a schema since."""
    parts = (part for message in staged_messages(messages) for part in message.txn_parts())
    check_still_plain(client, sorted({part.stream_id for part in parts}))


def abort_staged(client: Client, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give up the staged parts of the messages that are not committed; failures are only logged.

    A commit that took effect stays, also if its caller got an error.
    """
    give_up(client, [part for message in staged_messages(messages) for part in message.txn_parts()])


def give_up(client: Client, parts: Sequence[TxnPart]) -> None:
    """Give up staged parts that are not committed; failures are only logged."""
    if not parts:
        return
    try:
        dead = client.abort_txns(parts)
    except SbpError as error:
        LOG.warning("staged rows could not be aborted, servers drop them later error=%s", error)
    else:
        LOG.debug("gave up %d of %d staged parts", len(dead), len(parts))


def check_replay(
    decision: TxnDecision,
    key: BatchKey,
    record_count: int,
    digest: bytes,
    on_mismatch: OnReplayMismatch,
) -> None:
    """Compare the digest of a replay with the digest of the first decision, which counts.

    Raises LateCommitError if no decision of the batch is known: nobody knows then whether its rows
    were ever written, so they must not be left out silently. A batch without rows may come late.
    Raises ReplayMismatchError if the rows may differ, and that is to fail.
    """
    if decision.digest == digest:
        return
    rows = counted(record_count, "record")
    if not decision.digest and not record_count:
        LOG.info("%s comes too late, without rows: there was nothing to write", key)
        return
    if not decision.digest:
        raise LateCommitError(
            f"{key} comes too late: a batch of {key.producer} with a larger number is committed,"
            " and the outcome of this one is no longer known. Nothing was written of its"
            f" {rows}. {_REPEATED}"
        )
    message = (
        f"{key} was committed before, with {counted(decision.record_count or 0, 'record')}; now it"
        f" has {rows}, and "
    )
    if are_comparable(decision.digest, digest):
        message += "the rows or their streams differ"
        remedy = _REPEATED
    else:
        message += "whether the rows are the same is not known: their digests have other versions"
        remedy = "Finish the batch with the version of sbp-spark that started it"
    if on_mismatch is OnReplayMismatch.FAIL:
        raise ReplayMismatchError(
            f"{message}. Nothing was skipped, and nothing was written. {remedy}. If the query does"
            " not give the same rows each time, set onReplayMismatch=warn: the first commit counts"
        )
    LOG.warning("%s: skipped, as the first commit counts", message)


_REPEATED: Final = (
    "The checkpoint was copied, rewound or restored, or batches come out of order. Start with a new"
    " checkpoint; or write the rows in any case, beside those that are there, with a"
    " writerGeneration that the query never had (a batch write: with another txnAppId)"
)


def staged_messages(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    """Return the messages of tasks that staged rows; of a task that failed there is none."""
    return [message for message in messages if isinstance(message, StagedMessage)]


def all_staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    """Return the messages of tasks, all of which staged rows. Raises IncompleteWriteError."""
    staged = staged_messages(messages)
    if len(staged) < len(messages):
        raise IncompleteWriteError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks did not report what they"
            " staged, so nothing is committed; write again"
        )
    return staged


def log_lost(messages: Sequence[WriterCommitMessage | None], what: BatchKey | str) -> None:
    """Write to the log how many rows of a write could not be written."""
    written = [message for message in messages if isinstance(message, WrittenMessage)]
    skipped = sum(message.skipped_count for message in written)
    letters = sum(message.dead_letter_count for message in written)
    if skipped or letters:
        LOG.warning("bad rows of %s skipped=%d dead_letters=%d", what, skipped, letters)


def no_transactions(error: UnsupportedError) -> ConfigurationError:
    """Return the error of a write that needs transactions, at a server that knows none."""
    return ConfigurationError(
        f"option delivery: the servers know no transactions ({error}); upgrade them, or set"
        " delivery=at-least-once: rows that a task wrote before it failed may then be duplicated"
    )


def _too_many_parts(
    key: BatchKey, task_count: int, part_count: int, limit: str
) -> ConfigurationError:
    return ConfigurationError(
        f"{key}: {counted(task_count, 'task')} wrote {counted(part_count, 'part')}, one for each"
        f" stream of each, more than one decision can name ({limit}); let fewer tasks write to each"
        ' stream, for example with .repartition("stream")'
    )


PUBLISH_WAIT_MS: Final = limits.RETRY_BUDGET_MS
"""How long committed rows may take until they can be read."""
_PAUSE_S: Final = 0.1


class NotTrimmedError(SbpError):
    """The rows of a write are committed, but the older records were not trimmed."""


def tails_of(client: Client, stream_ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (stream id, where it ends now)."""
    if not stream_ids:
        return ()
    return tuple((each.stream_id, each.next_offset) for each in client.stream_bounds(stream_ids))


def commit_and_trim(
    client: Client,
    messages: Sequence[WriterCommitMessage | None],
    key: BatchKey,
    on_mismatch: OnReplayMismatch,
    *,
    publish_wait_ms: int = PUBLISH_WAIT_MS,
) -> None:
    """Commit as `commit_staged` does; when the rows can be read, trim the older records.

    May be repeated. Raises SbpError, and NotTrimmedError if the rows cannot be read for long, or
    some of them were lost.
    """
    give_up_at = time.monotonic() + publish_wait_ms / 1_000
    while True:
        decision = commit_staged(client, messages, key, on_mismatch)
        if decision.lost:
            raise NotTrimmedError(
                f"{key} is committed, but a range server lost"
                f" {sum(part.record_count for part in decision.lost)} of its rows, which were given"
                " up; so the records from before the write were not trimmed: write again"
            )
        if decision.is_published:
            break
        if time.monotonic() >= give_up_at:
            raise NotTrimmedError(
                f"{key} is committed, but after {publish_wait_ms / 1_000:g} s not all of its rows"
                " can be read; so the records from before the write were not trimmed. `sbp txns"
                f" {key.producer}` shows what they wait for; when the batch is published, write"
                " again"
            )
        time.sleep(_PAUSE_S)
    tails: dict[int, int] = {}
    for message in staged_messages(messages):
        for stream_id, tail in message.tails:
            tails[stream_id] = max(tail, tails.get(stream_id, 0))
    if not tails:
        return
    try:
        client.trim_streams(tails)
    except SbpError as error:
        raise NotTrimmedError(
            f"{key} is committed, but the records from before the write could not be trimmed from"
            f" all streams, so readers see both: {error}; write again"
        ) from error
