"""Grants in both homes of the metadata."""

from dataclasses import replace

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.errors import InvalidRequestError

READ = Grant("billing", Right.READ, "orders-*")
APPEND = Grant("billing", Right.APPEND, "orders-*")
OTHER = Grant("CN=audit", Right.READ, "*")


def test_grants_are_kept_by_subject(home):
    store = home.open()
    assert store.grants.of() == []
    store.grants.change([READ, OTHER, APPEND, READ], is_revoked=False)
    store.grants.change([APPEND], is_revoked=False)
    for _ in range(2):
        assert store.grants.of() == [OTHER, APPEND, READ]
        assert store.grants.of("billing") == [APPEND, READ]
        assert store.grants.of("nobody") == []
        store = home.crash()


def test_a_revoked_grant_is_gone_and_may_be_revoked_again(home):
    store = home.open()
    store.grants.change([READ, APPEND], is_revoked=False)
    for _ in range(2):
        store.grants.change([READ, OTHER], is_revoked=True)
        assert store.grants.of() == [APPEND]


def test_more_grants_than_allowed_change_nothing(home):
    store = home.open()
    store.grants.change([READ], is_revoked=False)
    with pytest.raises(InvalidRequestError, match="2 grants at most"):
        store.grants.change([APPEND, OTHER], is_revoked=False, grants_max=2)
    assert store.grants.of() == [READ]
    store.grants.change([READ, OTHER], is_revoked=False, grants_max=2)


def test_subjects_that_a_release_before_stored_are_brought_into_their_form(home):
    store = home.open()
    spaced, lost = Grant("cn=audit ,O = b", Right.READ, "*"), Grant("O Acme=x", Right.READ, "a")
    known = Grant("CN=audit,O=b", Right.READ, "*")
    store.grants.change([READ, spaced, replace(spaced, pattern="a"), lost, known], is_revoked=False)
    for _ in range(2):
        store.grants.canonicalise()
        assert store.grants.of() == [known, replace(known, pattern="a"), READ]
        assert store.grants.of("CN=audit,O=b") == [known, replace(known, pattern="a")]
