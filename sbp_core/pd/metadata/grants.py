"""The rights of subjects: table `grants`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sbp_core.access.identity import canonical_subject
from sbp_core.access.rights import GRANTS_MAX, Grant, Right
from sbp_core.errors import invalid
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import grants

_LOG: Final = logging.getLogger(__name__)


class GrantTable:
    """The grants of all subjects."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, subject: str | None = None) -> list[Grant]:
        """Return the grants of a subject, or all, by subject, right and pattern."""
        chosen = {} if subject is None else {"subject": subject}
        rows = self._database.rows(grants, **chosen)
        return [Grant(owner, Right(right), pattern) for owner, right, pattern in rows]

    def canonicalise(self) -> None:
        """Bring the subjects into the form in which they are compared, as the store had any text.

        Grants to invalid subjects are removed: they gave no identity a right.
        """
        removed, added = [], []
        for each in self.of():
            try:
                subject = canonical_subject(each.subject)
            except ValueError as error:
                _LOG.warning("grant removed, as nobody has its subject: %s: %s", each, error)
                removed.append(each)
                continue
            if subject != each.subject:
                _LOG.warning("grant changed subject=%s: it was %s", subject, each)
                removed.append(each)
                added.append(replace(each, subject=subject))
        if removed:
            with self._database.transaction():
                self._store(removed, is_revoked=True)
                self._store(added, is_revoked=False)

    def change(
        self, changes: Sequence[Grant], *, is_revoked: bool, grants_max: int = GRANTS_MAX
    ) -> None:
        """Add grants, or take them away, all or none; repeating a change does no harm.

        Raises InvalidRequestError for more than `grants_max`.
        """
        with self._database.transaction():
            self._store(changes, is_revoked=is_revoked)
            if not is_revoked and self._database.count("grants") > grants_max:
                raise invalid(
                    f"a cluster has {grants_max} grants at most: revoke some, or use"
                    " patterns that match several streams"
                )

    def _store(self, changes: Sequence[Grant], *, is_revoked: bool) -> None:
        for each in dict.fromkeys(changes):
            row = (each.subject, each.right.value, each.pattern)
            key = dict(zip(grants.columns.keys(), row, strict=True))
            if is_revoked:
                self._database.remove(grants, **key)
            elif not self._database.has(grants, **key):
                self._database.add(grants, [row])
