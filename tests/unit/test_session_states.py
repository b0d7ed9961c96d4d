"""The tables are total, and every pair is either a transition or a refusal."""

import itertools

import pytest

from sbp_core.session.machine import REFUSED, Machine
from sbp_core.session.states import CALL, CONNECTION, ConnectionInput, ConnectionState

MACHINES = [CONNECTION, CALL]


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
    with pytest.raises(AssertionError, match="says nothing"):
        Machine("holed", ConnectionState, ConnectionInput, table)


def test_closed_is_final():
    assert {CONNECTION.maybe_next(ConnectionState.CLOSED, item) for item in ConnectionInput} == {
        None,
        ConnectionState.CLOSED,
    }
