"""The window of a copy: whatever the answers of its server, it sends each entry in its place."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core.rangeserver.replicating.peer_link import Copy, CopyState, Numbered
from sbp_core.replication import Prefix

KEY = (7, 0)


class ServerOfACopy:
    """The other server: it appends what follows from what it has."""

    def __init__(self):
        self.entries = []

    @property
    def end(self):
        prefix = Prefix()
        for entry in self.entries:
            prefix = prefix.extended(entry)
        return prefix

    def receive(self, before, entries):
        """Append entries behind `before`; None if other ones come next."""
        if before != self.end:
            return None
        self.entries += entries
        return self.end


class Window(RuleBasedStateMachine):
    """A primary with one copy, and a network that loses frames and answers."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.end = Prefix()
        self.acks = 0
        self.server = ServerOfACopy()
        self.copy = Copy(KEY, 0, self.on_durable)
        self.frames = []
        self.answers = []
        self.now = 0.0

    def on_durable(self):
        self.acks += 1

    @rule(data=st.binary(max_size=3))
    def append(self, data):
        self.written.append(data)
        self.end = self.end.extended(data)
        self.now += 1
        self.copy.add(Numbered(self.end, [data, b""], len(data) + 1), self.now)

    @precondition(lambda self: self.copy.state is CopyState.STREAMING and self.copy.unsent_count)
    @rule(bytes_max=st.integers(1, 9))
    def send(self, bytes_max):
        before, parts, length = self.copy.take(bytes_max)
        assert parts
        assert length <= bytes_max or len(parts) == 2
        self.frames.append((before, parts[::2]))

    @precondition(lambda self: self.frames)
    @rule()
    def arrive(self):
        before, entries = self.frames.pop(0)
        self.answers.append(self.server.receive(before, entries))

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self):
        durable = self.answers.pop(0)
        if durable is None:
            self.copy.ask()
        else:
            self.copy.note_durable(durable, self.now)

    @rule()
    def lose_the_connection(self):
        self.frames.clear()
        self.answers.clear()
        self.copy.ask()

    @precondition(lambda self: self.copy.state is CopyState.ASKING and not self.frames)
    @rule()
    def ask(self):
        """The question is behind all frames of the connection, and so is its answer."""
        while self.answers:
            self.answer()
        self.copy.resume(self.server.end, self.now)

    @precondition(lambda self: self.server.entries)
    @rule(count=st.integers(1, 3))
    def damage(self, count):
        """The server loses its last entries: it is lost if the primary knew them to be there."""
        del self.server.entries[-count:]
        self.lose_the_connection()
        is_lost = len(self.server.entries) < self.copy.acked.seq
        was_lost = self.copy.state is CopyState.LOST
        if not was_lost:
            self.ask()
            assert (self.copy.state is CopyState.LOST) == is_lost

    @invariant()
    def the_copy_is_a_prefix(self):
        assert self.server.entries == self.written[: len(self.server.entries)]
        assert self.copy.acked.seq <= len(self.written)

    @invariant()
    def the_window_has_what_is_not_durable(self):
        if self.copy.state is CopyState.LOST:
            assert not self.copy.window
            return
        assert [each.end.seq for each in self.copy.window] == list(
            range(self.copy.acked.seq + 1, len(self.written) + 1)
        )
        assert self.copy.window_bytes == sum(each.length for each in self.copy.window)
        assert 0 <= self.copy.sent_count <= len(self.copy.window)
        assert (self.copy.behind_since is None) == (not self.copy.window)


TestWindow = Window.TestCase


def test_a_copy_with_other_entries_is_lost():
    copy = Copy(KEY, 0, lambda: None)
    end = Prefix().extended(b"a")
    copy.add(Numbered(end, [b"a"], 1), 0.0)
    copy.resume(Prefix().extended(b"b"), 1.0)
    assert copy.state is CopyState.LOST
    assert copy.behind_since == 0.0


def test_a_copy_with_more_entries_than_the_primary_is_lost():
    copy = Copy(KEY, 0, lambda: None)
    copy.resume(Prefix().extended(b"a"), 1.0)
    assert copy.state is CopyState.LOST


def test_what_is_committed_is_reported_once_no_entries_are_on_their_way():
    copy = Copy(KEY, 0, lambda: None)
    copy.resume(Prefix(), 0.0)
    first = Prefix().extended(b"a")
    second = first.extended(b"b")
    copy.add(Numbered(first, [b"a"], 1), 0.0)
    copy.add(Numbered(second, [b"b"], 1), 0.0)
    copy.take(9)
    copy.committed = (1, 1)
    copy.note_durable(first, 1.0)
    assert not copy.is_report_due
    copy.note_durable(second, 2.0)
    assert copy.is_report_due
    copy.reported_offset = 1
    assert not copy.is_report_due
