"""The port to where metadata is kept, and the one thread that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sbp_core.errors import SbpError, StatusError
from sbp_core.pd.capacity import Capacity
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.model import (
    ChangeRefusal,
    CursorRecord,
    GroupRecord,
    LogMark,
    NewStream,
    RangeRecord,
    RangeServerRecord,
    SchemaRecord,
    SealedRange,
    StreamChange,
    StreamRecord,
)
from sbp_core.pd.txns.transactions import AbortedTxn, Decision, Manifest, Part, TxnRecord, Verdict


class TransactionStore(Protocol):
    """What was decided of transactions, as durable and as atomic as the rest."""

    def commit(self, manifest: Manifest, decided_at_ms: int, leap_max: int) -> Decision:
        """Decide a batch, or return what was decided.

        Raises what `check_leap` and `check_parts` raise.
        """

    def abort(self, parts: Sequence[Part], aborted_at_ms: int) -> list[Verdict]:
        """Give up what may be given up; return what becomes of each part."""

    def record_published(self, published: Sequence[tuple[int, int]]) -> None:
        """Forget the parts of (decision's number, stream id): they are visible."""

    def give_up(self, txn_number: int, stream_id: int, given_up_at_ms: int) -> TxnRecord:
        """Note that what a decision has in a stream is lost; return the decision as it is then."""

    def maybe_decided(self, producer: str, batch_number: int) -> Decision | None:
        """Return what was decided of a batch; None if nothing was."""

    def unpublished(self) -> list[TxnRecord]:
        """Return the decisions that are not published, the oldest first."""

    def txns_after(
        self, txn_number: int, count_max: int, producer: str | None = None
    ) -> list[TxnRecord]:
        """Return up to `count_max` decisions beyond one, in their order; of a producer, or all."""

    def aborted_after(
        self, txn_id: str, count_max: int, producer: str | None = None
    ) -> list[AbortedTxn]:
        """Return up to `count_max` given up ones beyond an id, by id; of a producer, or all."""


class SchemaStore(Protocol):
    """The versions of the schemas of streams, as durable as the rest; gone with their stream."""

    def register(self, news: Sequence[SchemaRecord]) -> None:
        """Add versions, all or none; their streams are there, and do not have them yet."""

    def maybe_newest(self, stream_id: int) -> SchemaRecord | None:
        """Return the last version of a stream's schema; None where it has none."""

    def maybe_next(self, stream_id: int, version: int) -> SchemaRecord | None:
        """Return the version of a stream's schema that comes after one, 0: the first one."""


class SecretStore(Protocol):
    """By what range servers prove who they are, as durable as the rest."""

    def maybe_secret(self, server_id: int) -> str | None:
        """Return a server's secret; None where it has none."""

    def claim(self, server_id: int, secret: str) -> str:
        """Give a server this secret unless it has one; return the one that it has then."""

    def secrets_at(self, address: str) -> list[str]:
        """Return the secrets of the servers that announced an address last, the newest first."""


class LogMarkStore(Protocol):
    """What range servers said of their logs; as durable and atomic as the rest."""

    def maybe_mark(self, server_id: int) -> LogMark | None:
        """Return what a server said last of its log; None if it said nothing."""

    def keep(self, mark: LogMark) -> None:
        """Remember what a server says of its log."""


class MetadataStore(Protocol):
    """Durable metadata. Each method is atomic; what changed is on disk when it returns.

    All methods raise StatusError when the store fails. Not to be shared between threads.
    """

    @property
    def cluster_id(self) -> str:
        """Identity of the cluster, made with the store and never changed."""

    @property
    def maybe_failure(self) -> StatusError | None:
        """Why nothing can be read or written any more, None while all is well."""

    @property
    def transactions(self) -> TransactionStore:
        """What was decided of transactions. A deleted stream takes its parts along."""

    @property
    def capacity(self) -> Capacity:
        """How much more is taken note of."""

    @property
    def schemas(self) -> SchemaStore:
        """The schemas of streams."""

    @property
    def log_marks(self) -> LogMarkStore:
        """How far the logs of range servers are synced."""

    @property
    def secrets(self) -> SecretStore:
        """The secrets of range servers."""

    @property
    def last_commit(self) -> CommitId:
        """The last commit: its number, and the life of the store in which it was made."""

    def has_commit(self, claimed: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""

    def check_history(self, claimed: CommitId) -> None:
        """Raise StatusError if a commit is missing here that a peer was told of.

        Then the store is older than it was, and nothing else is read or written any more.
        """

    def revision(self) -> int:
        """Return a number that grows with every change of streams, ranges or their addresses."""

    def allocate_server_id(self) -> int:
        """Return an id for a range server, never issued before."""

    def register_server(self, server: RangeServerRecord) -> bool:
        """Remember the server's address; False when its id was never allocated here."""

    def server_addresses(self) -> Mapping[int, str]:
        """Return the address of each server that was ever registered."""

    def open_range_counts(self) -> Mapping[int, int]:
        """Return how many open ranges each server hosts; servers without one are absent."""

    def create_streams(
        self, streams: Sequence[NewStream], created_at_ms: int
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Create streams, each with an open range from offset 0; None where the name is taken."""

    def delete_streams(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Delete streams with their ranges and cursors; None where there is none."""

    def update_streams(self, changes: Sequence[StreamChange]) -> list[StreamRecord | ChangeRefusal]:
        """Change streams in this order; return each as it is then, or why it was left alone."""

    def trim_streams(
        self, trims: Sequence[tuple[int, int]]
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Forget what each (stream id, offset) has below the offset; None where there is no stream.

        Returns the stream and its smallest range afterwards: the last one is never removed, and
        no range begins beyond its end or goes back.
        """

    def streams_by_id(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""

    def streams_by_name(self, names: Sequence[str]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""

    def streams_after(self, stream_id: int, count_max: int) -> list[StreamRecord]:
        """Return up to `count_max` streams with ids greater than `stream_id`, by id."""

    def ranges_after(
        self,
        after: tuple[int, int],
        count_max: int,
        *,
        stream_id: int | None,
        server_id: int | None,
    ) -> list[RangeRecord]:
        """Return up to `count_max` ranges beyond `after` = (stream id, range index), in that order.

        Only those of one stream, of one server, or of both, as far as they are given.
        """

    def maybe_last_range(self, stream_id: int) -> RangeRecord | None:
        """Return the range with the highest index of a stream."""

    def range_count(self, stream_id: int) -> int:
        """Return how many ranges a stream has."""

    def create_ranges(self, news: Sequence[RangeRecord]) -> list[bool]:
        """Add ranges; False where the stream has one of that index already, or is gone."""

    def seal_ranges(self, ends: Sequence[SealedRange]) -> list[bool]:
        """Record where ranges end, and the writers there; False where it is sealed, or gone."""

    def writers_before(self, stream_id: int, range_index: int) -> bytes:
        """Return the writers at the end of the range before, empty if that is not known."""

    def commit_cursors(
        self, group: str, cursors: Sequence[tuple[int, int]], committed_at_ms: int
    ) -> list[bool]:
        """Set a group's cursors, (stream id, next offset) each, in this order.

        NO_CURSOR as the offset forgets one, which is never refused. False where there is no stream.
        """

    def cursors_of(self, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
        """Return a group's cursors in the order asked for; None where there is none."""

    def cursors_after(self, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
        """Return up to `count_max` cursors of a group beyond a stream id, by id."""

    def groups_after(self, group: str, count_max: int) -> list[GroupRecord]:
        """Return up to `count_max` groups whose names come after `group`, by name."""

    def close(self) -> None:
        """Release the store."""


P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """Runs work on a store, one piece at a time: no other work comes between its calls.

    `failed` ends with the reason when the store can do no more work.
    """

    def __init__(self, store: MetadataStore, executor: ThreadPoolExecutor) -> None:
        self._store = store
        self._executor = executor
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, open_store: Callable[[], MetadataStore]) -> StoreThread:
        """Open a store on a thread of its own. Raises what `open_store` raises."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sbp-pd-store")
        try:
            store = await asyncio.get_running_loop().run_in_executor(executor, open_store)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(store, executor)

    @property
    def cluster_id(self) -> str:
        """Identity of the cluster."""
        return self._store.cluster_id

    async def run(
        self, work: Callable[Concatenate[MetadataStore, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work(store, ...)` returns. Raises StatusError when the store fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: work(self._store, *args, **kwargs)
            )
        finally:
            failure = self._store.maybe_failure
            if failure is not None and not self.failed.done():
                self.failed.set_result(failure)

    async def close(self) -> None:
        """Finish what is queued, then close the store."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.close)
        self._executor.shutdown()
