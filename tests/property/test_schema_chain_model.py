"""Clients that race to change a schema: whatever their order, its versions are a chain.

Each client is where it last saw the stream; in between, others go on. They speak to the operations
of a real store, also through crashes, and some send what no client of ours would.
"""

import itertools
from functools import partial

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sbp_core.errors import SchemaError, StatusCode
from sbp_core.pd.model import NewStream
from sbp_core.pd.streams.schema_handlers import SchemaCursor, describe_schemas, register_schemas
from sbp_core.records import StreamSchema, check_evolution, decode_stream_schema, merge_schemas
from sbp_core.wire.headers import SchemaEntry
from tests.support.clock import examples
from tests.support.metadata import SqliteHome

KINDS = st.recursive(
    st.sampled_from(
        [
            *(pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
            *(pa.decimal128(5, 2), pa.decimal128(9, 3), pa.string(), pa.date32()),
        ]
    ),
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(lambda kind: pa.map_(pa.string(), kind), inner),
        st.builds(lambda kind: pa.struct([("x", kind)]), inner),
    ),
    max_leaves=2,
)
COLUMNS = st.builds(
    pa.field, st.sampled_from(["a", "b", "c", "d", "A"]), KINDS, nullable=st.booleans()
)
CLIENTS = st.integers(0, 2)


@st.composite
def schemas(draw):
    columns = draw(
        st.lists(COLUMNS, min_size=1, max_size=4, unique_by=lambda field: field.name.lower())
    )
    return StreamSchema.of(pa.schema(columns))


class ChainMachine(RuleBasedStateMachine):
    def __init__(self, home):
        super().__init__()
        self.home = home
        self.store = home.open()
        ((stream, _),) = self.store.create_streams([NewStream("s", 1, 1, 0, (1,))], 1)
        self.stream_id = stream.stream_id
        self.seen = dict.fromkeys(range(3))
        """The entry that each client saw last."""
        self.expected = []

    def teardown(self):
        self.home.empty()

    def ask(self, *entries):
        answers = register_schemas(self.store, entries, 5)
        for answer, each in zip(answers, entries, strict=True):
            newest = self.expected[-1] if self.expected else None
            if answer.status.code == 0 and each.fingerprint != getattr(newest, "fingerprint", None):
                self.expected.append(decode_stream_schema(each.schema))
            assert answer.version == len(self.expected)
            if self.expected:
                assert answer.fingerprint == self.expected[-1].fingerprint
        return answers

    def entry(self, version, schema):
        return SchemaEntry(self.stream_id, version, schema.fingerprint, schema.encode())

    @rule(client=CLIENTS)
    def look(self, client):
        (self.seen[client],), _ = describe_schemas(
            self.store, [self.stream_id], SchemaCursor(), newest_only=True
        )

    @rule(client=CLIENTS, schema=schemas())
    def evolve(self, client, schema):
        """One turn of a client, from what it saw: it need not be the newest any more."""
        seen = self.seen[client]
        if seen is None:
            return
        wanted = schema
        if seen.version > 0:
            try:
                wanted = merge_schemas(decode_stream_schema(seen.schema), schema)
            except SchemaError:
                return
        before = list(self.expected)
        (answer,) = self.ask(self.entry(seen.version + 1, wanted))
        assert answer.status.code in {0, StatusCode.CONFLICT}
        if seen.version == len(before):
            assert answer.status.code == 0
            assert self.expected[-1] == wanted
            assert len(self.expected) <= len(before) + 1
        self.seen[client] = answer

    @rule(versions=st.lists(st.tuples(st.integers(-1, 3), schemas()), max_size=3))
    def insist(self, versions):
        """Whatever is asked for, several at a time, by those that do not look first."""
        ahead = len(self.expected)
        self.ask(*[self.entry(ahead + step, schema) for step, schema in versions])

    @rule()
    def crash(self):
        self.store = self.home.crash()

    @invariant()
    def versions_are_a_chain(self):
        entries, _ = describe_schemas(
            self.store, [self.stream_id], SchemaCursor(), newest_only=False
        )
        found = [decode_stream_schema(each.schema) for each in entries if each.version > 0]
        assert found == self.expected
        assert [each.version for each in entries] == list(range(1, len(found) + 1)) or not found
        for older, newer in itertools.pairwise(found):
            check_evolution(older, newer)
            assert older != newer


def test_the_versions_of_a_schema_are_a_chain(home):
    count = examples(15 if isinstance(home, SqliteHome) else 4)
    run_state_machine_as_test(
        partial(ChainMachine, home),
        settings=settings(max_examples=count, stateful_step_count=20, deadline=None),
    )
