"""Which process may be which range server: they live, die, copy and forge; the rules are real."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from sbp_core.errors import SbpError
from sbp_core.pd.metadata.store import MetadataStore, open_store
from sbp_core.pd.model import RangeServerRecord
from sbp_core.pd.server_membership import Joining, Membership
from sbp_core.server.trust import Standing
from sbp_core.wire.headers import RangeServer
from tests.support.clock import ManualClock, examples

TIMEOUT_MS = 1_000
ADDRESSES = [f"h:{number}" for number in range(1, 5)]
addresses = st.sampled_from(ADDRESSES)


@dataclass(eq=False)
class Process:
    """A range server's process. A suspended one keeps its address but answers no request."""

    server_id: int
    secret: str | None
    address: str
    stands_still: bool = False


class SameThread:
    """The store, without its thread."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.cluster_id = store.cluster_id

    async def run(self, work, *args, **kwargs):
        return work(self._store, *args, **kwargs)


class JoiningMachine(RuleBasedStateMachine):
    """At most one process at a time is the server with an id, and the server at an address."""

    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sbp-joining-"))
        self.store = open_store(self.folder)
        self.clock = ManualClock()
        self.membership = Membership(self.clock, TIMEOUT_MS)
        self.joining = Joining(SameThread(self.store), self.membership)
        self.joining._maybe_holds = self.maybe_holds
        self.listening: dict[str, Process] = {}
        self.accepted: dict[RangeServerRecord, tuple[Process, int]] = {}
        """By place the process that was accepted there last, and when."""

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    async def maybe_holds(self, address, secret):
        """Return whether the process at an address proves the secret; None without an answer."""
        there = self.listening.get(address)
        if there is None:
            return False
        if there.stands_still or there.secret is None:
            return None
        return there.secret == secret

    def heard(self, server_id, address, secret) -> bool:
        before = self.live()
        try:
            asyncio.run(self.joining.heard(RangeServer(server_id, address), secret, Standing()))
        except SbpError:
            assert self.live() == before, "a heartbeat that was refused changed something"
            return False
        return True

    def live(self) -> set[RangeServerRecord]:
        return {each for each in self.membership._heard if self.membership.is_live(each)}

    def start_at(self, process: Process) -> bool:
        """Whether the process can listen there."""
        if process.address in self.listening:
            return False
        self.listening[process.address] = process
        return True

    @initialize(target=processes, address=addresses)
    def begin(self, address):
        return self.allocate(address, True)

    def allocate(self, address, has_secret):
        server_id = self.store.servers.allocate_id()
        secret = f"secret of {server_id}" if has_secret else None
        if secret is not None:
            self.store.servers.claim_secret(server_id, secret)
        process = Process(server_id, secret, address)
        return process if self.start_at(process) else multiple()

    @rule(target=processes, address=addresses, has_secret=st.booleans())
    def start(self, address, has_secret):
        return self.allocate(address, has_secret)

    @rule(target=processes, former=processes, address=addresses)
    def copy(self, former, address):
        """Start a process on a copy of a data directory, or restart one that died."""
        process = Process(former.server_id, former.secret, address)
        return process if self.start_at(process) else multiple()

    @rule(process=consumes(processes))
    def die(self, process):
        if self.listening.get(process.address) is process:
            del self.listening[process.address]

    @rule(process=processes, stands_still=st.booleans())
    def stand_still(self, process, stands_still):
        process.stands_still = stands_still

    @rule(ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def wait(self, ms):
        self.clock.advance(ms)

    @rule(process=processes)
    def beat(self, process):
        if process.stands_still or self.listening.get(process.address) is not process:
            return
        rivals = [
            (owner, place)
            for place, (owner, _) in self.accepted.items()
            if self.membership.is_live(place)
            and owner is not process
            and self.listening.get(owner.address) is owner
            and (place.server_id == process.server_id) is not (place.address == process.address)
        ]
        was_accepted = self.heard(process.server_id, process.address, process.secret)
        place = RangeServerRecord(process.server_id, process.address)
        if was_accepted:
            assert not rivals, f"{rivals} were pushed aside, and live"
            self.accepted[place] = (process, self.clock.monotonic())
        elif not self.membership.conflicting(place):
            raise AssertionError(f"{process} was refused without a rival")

    @rule(
        victim=processes,
        address=addresses,
        secret=st.sampled_from([None, "", "guess", "secret of 0"]),
    )
    def forge(self, victim, address, secret):
        if victim.secret is not None:
            assert not self.heard(victim.server_id, address, secret)

    @rule(address=addresses)
    def claim_an_address_with_an_id_of_ones_own(self, address):
        server_id = self.store.servers.allocate_id()
        self.store.servers.claim_secret(server_id, "mine")
        is_taken = any(each.address == address for each in self.live())
        was_accepted = self.heard(server_id, address, "mine")
        assert was_accepted is not is_taken

    @invariant()
    def one_process_has_an_id_and_one_an_address(self):
        live = self.live()
        assert len({each.server_id for each in live}) == len(live)
        assert len({each.address for each in live}) == len(live)


TestJoining = JoiningMachine.TestCase
TestJoining.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
