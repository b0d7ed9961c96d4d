"""The one thread that touches the metadata store, so that no disk is awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from sbp_core.errors import SbpError
from sbp_core.pd.metadata.store import MetadataStore

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
