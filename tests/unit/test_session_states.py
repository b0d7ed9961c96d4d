"""The tables are total, every pair is a transition or a refusal, and the code obeys them."""

import ast
import inspect
import itertools

import pytest

from sbp_core.pd.txns import publications, publishing
from sbp_core.pd.txns.publications import PUBLICATION
from sbp_core.rangeserver import hosted_ranges, hosting, range_handlers
from sbp_core.rangeserver.hosted_ranges import RANGE
from sbp_core.session import connection
from sbp_core.session.states import (
    CALL,
    CONNECTION,
    REFUSED,
    ConnectionInput,
    ConnectionState,
    Machine,
)

MACHINES = [CONNECTION, CALL, RANGE, PUBLICATION]
CODE = {
    "connection": [connection],
    "call": [connection],
    "range": [hosted_ranges, hosting, range_handlers],
    "publication": [publications, publishing],
}
"""Where each machine gets its inputs."""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_product_of_states_and_inputs_is_listed(machine):
    listed = {(state, item) for state, row in machine.table.items() for item in row}
    assert listed == set(itertools.product(machine.states, machine.inputs))
    for state, item in listed:
        target = machine.maybe_next(state, item)
        assert (target is None) == (machine.table[state][item] is REFUSED)


def test_a_table_with_a_hole_is_refused():
    table = {state: dict(row) for state, row in CONNECTION.table.items()}
    del table[ConnectionState.OPEN][ConnectionInput.CLOSE]
    with pytest.raises(AssertionError, match="has no entry"):
        Machine("holed", ConnectionState, ConnectionInput, table)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_input_is_given_to_the_table_and_no_state_is_set_beside_it(machine):
    nodes = list(
        itertools.chain.from_iterable(map(outside_of_tables, map(source, CODE[machine.name])))
    )
    given = {
        each.attr
        for each in nodes
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == machine.inputs.__name__
    }
    assert given == {each.name for each in machine.inputs}
    assigned = [
        ast.unparse(each.value)
        for each in nodes
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and ast.unparse(each.value or ast.Constant(None)).startswith(machine.states.__name__ + ".")
    ]
    first = next(iter(machine.states))
    assert assigned == [f"{machine.states.__name__}.{first.name}"]


def source(module):
    return ast.parse(inspect.getsource(module))


def outside_of_tables(node):
    yield node
    for each in ast.iter_child_nodes(node):
        if not (isinstance(each, ast.Call) and ast.unparse(each.func) == "Machine"):
            yield from outside_of_tables(each)


def test_closed_is_final():
    assert {CONNECTION.maybe_next(ConnectionState.CLOSED, item) for item in ConnectionInput} == {
        None,
        ConnectionState.CLOSED,
    }
