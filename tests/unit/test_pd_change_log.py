"""Which streams changed since a revision."""

from sbp_core.pd.metadata.server_tables import CHANGES_LISTED_MAX, ChangeLog


def log_of(*changes, **limits):
    log = ChangeLog(**limits)
    for revision, stream_ids in changes:
        log.note(revision, stream_ids)
    return log


def test_each_changed_stream_is_named_once():
    log = log_of((5, [1, 2]), (6, [3]), (7, [1]))
    assert log.maybe_since(4, 7) == [1, 3, 2]
    assert log.maybe_since(5, 7) == [1, 3]
    assert log.maybe_since(7, 7) == []


def test_nothing_is_known_of_what_came_before():
    assert ChangeLog().maybe_since(0, 3) is None
    log = log_of((5, [1]))
    assert log.maybe_since(3, 5) is None
    assert log.maybe_since(4, 6) is None  # the revision of another placement driver


def test_a_gap_and_a_revision_that_was_rolled_back_begin_the_log_again():
    assert log_of((5, [1]), (9, [2])).maybe_since(4, 9) is None
    log = log_of((5, [1]), (6, [2]), (6, [3]))
    assert log.maybe_since(4, 6) is None
    assert log.maybe_since(5, 6) == [3]


def test_a_change_of_an_address_concerns_all_streams():
    log = log_of((5, [1]), (6, None), (7, [2]))
    assert log.maybe_since(5, 7) is None
    assert log.maybe_since(6, 7) == [2]


def test_old_and_many_changes_are_not_told():
    log = log_of((5, [1]), (6, [2]), (7, [3]), kept_max=2)
    assert log.maybe_since(4, 7) is None
    assert log.maybe_since(5, 7) == [3, 2]
    many = log_of((5, range(CHANGES_LISTED_MAX + 1)))
    assert many.maybe_since(4, 5) is None
