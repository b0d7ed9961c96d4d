"""The metadata of a cluster, by families of tables, and the one thread that uses them.

`streams`, `ranges`, `schemas`, `servers`, `cursors`, `groups`, `grants` and `transactions` have the
statements of one family of tables each, `tables` declares the tables, and a `Database` has the
connection and its transactions. The changes of a method are on disk when
it returns, all or nothing. Every method raises StatusError when the store fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from sbp_core.errors import (
    ConfigurationError,
    NotLeaderError,
    RequestTimeoutError,
    SbpError,
    StatusCode,
)
from sbp_core.pd.capacity import Capacity
from sbp_core.pd.metadata.cursors import CursorTable
from sbp_core.pd.metadata.data_dir import DATABASE_NAME
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.grants import GrantTable
from sbp_core.pd.metadata.group_tables import GroupTables
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.metadata.schemas import SchemaTable
from sbp_core.pd.metadata.server_tables import RestoreTable, ServerTables
from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.metadata.stream_tables import PropertyTable, StreamTables
from sbp_core.pd.metadata.txn_tables import TransactionTables
from sbp_core.settings.server_settings import CapacityLimits

_NO_SETTINGS: Final = CapacityLimits()
_SHARED_SCHEMES: Final = frozenset({"postgresql", "postgres"})


class MetadataStore(StreamTables):
    """The streams and ranges of a cluster; everything else in an attribute for its family.

    Must be used by the thread that opened it. Made by `open_store`.
    """

    def __init__(self, database: Database, capacity_limits: CapacityLimits) -> None:
        self.database: Final = database
        self.capacity: Final = Capacity(database.count, capacity_limits)
        self.servers: Final = ServerTables(database)
        self.transactions: Final = TransactionTables(database, self.capacity)
        self.schemas: Final = SchemaTable(database)
        self.cursors: Final = CursorTable(database)
        self.groups: Final = GroupTables(database)
        self.grants: Final = GrantTable(database)
        self.restores: Final = RestoreTable(database, self.servers)
        self.properties: Final = PropertyTable(database)
        super().__init__(database, self.servers, self.transactions, self.properties)

    @property
    def cluster_id(self) -> str:
        """Identity of the cluster, made with the store and never changed."""
        return self.servers.cluster_id

    @property
    def last_commit(self) -> CommitId:
        """The last commit: its number, and the life of the store in which it was made."""
        return self.database.last_commit

    def lead(self, term: int) -> None:
        """Decide in this term from now on, which `Leadership` gave; 0: no longer.

        A store on SQLite always leads. Raises NotLeaderError if the term has ended already.
        """
        self.database.lead(term)
        self.servers.forget_changes()

    def revision(self) -> int:
        """Return a number that grows with every change of streams, ranges or their addresses."""
        return self.servers.revision()

    def close(self) -> None:
        """Close the database."""
        self.database.close()


def open_store(home: Path | str, capacity_limits: CapacityLimits = _NO_SETTINGS) -> MetadataStore:
    """Open the store at a data directory or URL, or make it.

    `sqlite:///DIRECTORY/metadata.sqlite` stands for the data directory. The store at a
    `postgresql://` URL can be changed after `MetadataStore.lead` only. Raises ConfigurationError
    when the store cannot be used, or must not be.
    """
    return MetadataStore(_open_database(home), capacity_limits)


def is_shared(home: Path | str) -> bool:
    """Whether several placement drivers can use the store at a data directory or URL."""
    return isinstance(home, str) and home.partition("://")[0] in _SHARED_SCHEMES


def data_dir_of(home: Path | str) -> Path:
    """Return the data directory of an SQLite store. Raises ConfigurationError for other URLs."""
    scheme, separator, rest = str(home).partition("://")
    if isinstance(home, Path) or not separator:
        return Path(home)
    path = Path(rest.removeprefix("/"))
    if scheme == "sqlite" and path.name == DATABASE_NAME:
        return path.parent
    raise ConfigurationError(
        f"store: {scheme}:// cannot be used; use postgresql://USER@HOST:PORT/DATABASE, or"
        f" sqlite:///DIRECTORY/{DATABASE_NAME}"
    )


def _open_database(home: Path | str) -> Database:
    if is_shared(home):
        from sbp_core.pd.metadata.postgresql import PostgresqlDatabase

        return PostgresqlDatabase(str(home))
    return SqliteFile(data_dir_of(home))


P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """Runs work on a store, one piece at a time: no other work comes between its calls.

    `failed` ends with the reason when the store can no longer be read or written. `lead` returns
    another StoreThread for one term, on the same thread. Its work is refused when the term is over,
    even if this placement driver leads again then.
    """

    def __init__(self, store: MetadataStore, executor: ThreadPoolExecutor) -> None:
        self._store = store
        self._executor = executor
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()
        self._refusal: Callable[[], Awaitable[NotLeaderError]] | None = None
        self._is_over = False

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

    async def lead(
        self, term: int, refusal: Callable[[], Awaitable[NotLeaderError]]
    ) -> StoreThread:
        """Return what decides in a term from now on, until `end`.

        `refusal` makes the error of work that comes after the term. Raises NotLeaderError if the
        term has ended already.
        """
        await self._call(lambda: self._store.lead(term))
        led = StoreThread(self._store, self._executor)
        led.failed, led._refusal = self.failed, refusal
        return led

    def end(self) -> None:
        """Refuse all work from now on: the term is over."""
        self._is_over = True

    async def peek(self, work: Callable[[MetadataStore], T]) -> T:
        """Return what `work(store)` reads, which nothing may be decided by: it may be outdated."""
        return await self._call(lambda: work(self._store))

    async def run(
        self, work: Callable[Concatenate[MetadataStore, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work(store, ...)` returns.

        Raises StatusError when the store fails, NotLeaderError if this placement driver does not
        lead, and RequestTimeoutError if it leads no longer after it may have changed something.
        """
        try:
            return await self._call(lambda: self._run_confirmed(work, *args, **kwargs))
        except NotLeaderError as error:
            if self._refusal is None:
                raise
            raise await self._refusal() from error

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            failure = self._store.database.failure
            if failure is not None and not self.failed.done():
                self.failed.set_result(failure)

    def _run_confirmed(
        self, work: Callable[Concatenate[MetadataStore, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._is_over:
            raise NotLeaderError(StatusCode.PD_NOT_LEADER, "its term is over")
        commits_tried = self._store.database.commits_tried
        try:
            try:
                return work(self._store, *args, **kwargs)
            finally:  # an outdated read may have caused an error, too
                self._store.database.confirm()
        except NotLeaderError as error:
            if self._store.database.commits_tried == commits_tried:
                raise
            raise RequestTimeoutError.of(
                "another placement driver took over during this request, and it is not known"
                " whether its changes were made: look, or retry what may be repeated"
            ) from error

    async def close(self) -> None:
        """Finish the queued work, then close the store."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.close)
        self._executor.shutdown()
