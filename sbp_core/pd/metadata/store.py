"""The metadata of a cluster, by families of tables, and the one thread that uses them.

All SQL is in this folder: `sqlite_streams`, `sqlite_servers`, `sqlite_cursors` and
`sqlite_transactions` have the statements of one family of tables each, `sqlite_schema` makes the
tables, `sqlite_file` has the connection and its transactions. The changes of a method are on disk
when it returns, all or nothing. Every method raises StatusError when the store fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from sbp_core.errors import SbpError, StatusError
from sbp_core.pd.capacity import Capacity, CapacityLimits
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.metadata.sqlite_cursors import CursorTable
from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.metadata.sqlite_servers import ServerTables
from sbp_core.pd.metadata.sqlite_streams import SchemaTable, StreamTables
from sbp_core.pd.metadata.sqlite_transactions import TransactionTables

_NO_SETTINGS: Final = CapacityLimits()


class MetadataStore(StreamTables):
    """The streams and ranges of a cluster; everything else in an attribute for its family.

    Must be used by the thread that opened it.
    """

    def __init__(self, data_dir: Path, capacity_limits: CapacityLimits = _NO_SETTINGS) -> None:
        """Open the store, or make it.

        Raises ConfigurationError when the directory or the file cannot be used.
        """
        file = SqliteFile(data_dir)
        self.capacity: Final = Capacity(file.count, capacity_limits)
        self.servers: Final = ServerTables(file)
        self.transactions: Final = TransactionTables(file, self.capacity)
        self.schemas: Final = SchemaTable(file)
        self.cursors: Final = CursorTable(file)
        super().__init__(file, self.servers, self.transactions)

    @property
    def maybe_failure(self) -> StatusError | None:
        """Why the store can be neither read nor written any longer; None while it can."""
        return self._file.failure

    @property
    def cluster_id(self) -> str:
        """Identity of the cluster, made with the store and never changed."""
        return self.servers.cluster_id

    @property
    def last_commit(self) -> CommitId:
        """The last commit: its number, and the life of the store in which it was made."""
        return self._file.last_commit

    def has_commit(self, claimed: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""
        return self._file.has_commit(claimed)

    def check_history(self, claimed: CommitId) -> None:
        """Raise StatusError if a commit is missing here that a peer knows.

        Then the store is older than it was, and every later call fails.
        """
        self._file.check_history(claimed)

    def revision(self) -> int:
        """Return a number that grows with every change of streams, ranges or their addresses."""
        return self.servers.revision()

    def close(self) -> None:
        """Close the file and release the directory."""
        self._file.close()


P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """Runs work on a store, one piece at a time: no other work comes between its calls.

    `failed` ends with the reason when the store can be neither read nor written any longer.
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
