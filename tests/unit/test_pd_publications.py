"""The steps by which what is committed becomes visible in a stream."""

from __future__ import annotations

import pytest

from sbp_core.errors import (
    ConnectError,
    InvalidRequestError,
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
    StatusCode,
    StorageError,
    TxnEndedError,
    TxnIncompleteError,
)
from sbp_core.pd.txns.decisions import Part
from sbp_core.pd.txns.publications import (
    PUBLICATION,
    Publication,
    PublicationInput,
    PublicationState,
    publications_of,
)

S, Told = PublicationState, PublicationInput

SEALED = RangeSealedError(StatusCode.RANGE_ALREADY_SEALED, "")
INCOMPLETE = TxnIncompleteError(StatusCode.TXN_INCOMPLETE, "")
ENDED = TxnEndedError(StatusCode.TXN_ENDED, "")
DAMAGED = StorageError(StatusCode.RS_DATA_CORRUPTED, "")
INVALID = InvalidRequestError(StatusCode.INVALID_REQUEST, "")


def test_a_publication_is_of_one_stream_and_begins_in_the_last_range_staged_in():
    parts = [Part("a", 1, 0, 5), Part("b", 2, 0, 1), Part("a", 1, 2, 3), Part("c", 1, 1, 4)]
    one, two = publications_of(9, parts)
    assert (one.txn_number, one.stream_id, one.range_index, one.record_count) == (9, 1, 2, 12)
    assert one.txn_ids == ("a~0", "a", "c~1"), "in the order of the manifest"
    assert one.earlier == (parts[0], parts[3])
    assert one.leftovers == (
        Part("a", 1, 0, 5),
        Part("a~0", 1, 1, 5),
        Part("c", 1, 1, 4),
    )
    assert (two.parts, two.txn_ids, two.earlier, two.leftovers) == ((parts[1],), ("b",), (), ())
    assert publications_of(9, []) == []


def walk(publication: Publication, *learned: PublicationInput) -> Publication:
    for each in learned:
        publication = publication.after(each)
    return publication


@pytest.mark.parametrize("error", [INVALID, DAMAGED])
def test_a_fault_is_shown_as_stuck_but_says_of_nothing_that_it_is_lost(error):
    publication = Publication.of(1, [Part("a", 1, 0, 5)])
    copying = walk(publication, Told.SEALED, Told.MOVED, Told.COPIES_LACKING)
    for each in (publication, copying, copying.after(Told.COPIED)):
        assert each.maybe_learned(error) is Told.FAULT
        stuck = each.after(Told.FAULT)
        assert stuck.state is S.STUCK
        assert stuck.maybe_learned(error) is Told.FAULT
        assert stuck.maybe_learned(None) is Told.DONE


@pytest.mark.parametrize("error", [INCOMPLETE, ENDED])
def test_a_batch_that_differs_from_its_commit_is_stuck_and_retried(error):
    publication = Publication.of(1, [Part("a", 1, 0, 5)])
    assert publication.maybe_learned(error) is Told.INCOMPLETE
    stuck = publication.after(Told.INCOMPLETE)
    assert stuck.maybe_learned(error) is Told.INCOMPLETE
    assert stuck.maybe_learned(None) is Told.DONE
    assert stuck.maybe_learned(SEALED) is Told.SEALED


def test_only_what_is_stuck_is_given_up():
    taking = {state for state in S if PUBLICATION.maybe_next(state, Told.GIVEN_UP)}
    assert taking == {S.STUCK}
    publication = Publication.of(1, [Part("a", 1, 0, 5), Part("b", 1, 1, 3)])
    stuck = walk(publication, Told.SEALED, Told.MOVED, Told.COPIES_LACKING, Told.COPIED)
    stuck = stuck.after(Told.INCOMPLETE)
    assert stuck.after(Told.GIVEN_UP).state is S.SETTLED
    places = [(each.txn_id, each.range_index) for each in stuck.remains]
    assert places == [("a", 0), ("a~0", 1), ("a~0", 2), ("b", 1), ("b~1", 2)]


@pytest.mark.parametrize(
    "error",
    [
        ConnectError(),
        StorageError(StatusCode.RS_INTERNAL, ""),
        NotFoundError(StatusCode.NOT_FOUND, ""),
        RangeNotFoundError(StatusCode.RANGE_NOT_FOUND, ""),
    ],
)
def test_other_errors_say_nothing(error):
    publication = Publication.of(1, [Part("a", 1, 0, 5)])
    copying = walk(publication, Told.SEALED, Told.MOVED, Told.COPIES_LACKING)
    assert publication.maybe_learned(error) is None
    assert copying.maybe_learned(error) is None


def test_from_everywhere_there_is_a_way_to_the_end():
    ways = {state: set(PUBLICATION.table[state].values()) for state in S}
    ending = {S.SETTLED}
    for _ in S:
        ending |= {state for state, targets in ways.items() if targets & ending}
    assert ending == set(S)
    ended = {state for state in S if PUBLICATION.maybe_next(state, Told.STREAM_DELETED)}
    assert ended == set(S) - {S.PUBLISHED, S.SETTLED}, "those two ask for no route"
