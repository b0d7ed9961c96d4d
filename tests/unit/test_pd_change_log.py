"""Which streams changed since a revision."""

from sbp_core.pd.metadata.server_tables import CHANGES_LISTED_MAX, ChangeLog


def log_of(*changes, **limits):
    log = ChangeLog(**limits)
    for revision, stream_ids in changes:
        log.note(revision, stream_ids)
    return log


def test_a_gap_and_a_revision_that_was_rolled_back_begin_the_log_again():
    assert log_of((5, [1]), (9, [2])).maybe_since(4, 9) is None
    log = log_of((5, [1]), (6, [2]), (6, [3]))
    assert log.maybe_since(4, 6) is None
    assert log.maybe_since(5, 6) == [3]


def test_old_and_many_changes_are_not_told():
    log = log_of((5, [1]), (6, [2]), (7, [3]), kept_max=2)
    assert log.maybe_since(4, 7) is None
    assert log.maybe_since(5, 7) == [3, 2]
    many = log_of((5, range(CHANGES_LISTED_MAX + 1)))
    assert many.maybe_since(4, 5) is None
