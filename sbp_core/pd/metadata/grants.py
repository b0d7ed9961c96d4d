"""The rights of subjects: table `grants`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import bindparam, delete, insert, select

from sbp_core.access.identity import canonical_subject
from sbp_core.access.rights import GRANTS_MAX, Grant, Right
from sbp_core.errors import invalid
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import grants

_LOG: Final = logging.getLogger(__name__)
_ALL: Final = select(*grants.columns).order_by(*grants.columns)
_OF_SUBJECT: Final = _ALL.where(grants.c.subject == bindparam("subject"))
_IS_IT: Final = tuple(key == bindparam(key.name, type_=key.type) for key in grants.primary_key)
_FIND: Final = select(grants.c.subject).where(*_IS_IT)
_ADD: Final = insert(grants)
_DELETE: Final = delete(grants).where(*_IS_IT)


class GrantTable:
    """The grants of all subjects."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query

    def of(self, subject: str | None = None) -> list[Grant]:
        """Return the grants of a subject, or all, by subject, right and pattern."""
        rows = self._query(_ALL) if subject is None else self._query(_OF_SUBJECT, subject=subject)
        return [Grant(owner, Right(right), pattern) for owner, right, pattern in rows]

    def canonicalise(self) -> None:
        """Bring the subjects into the form in which they are compared, as the store had any text.

        Grants to what can be no subject are removed: they gave nobody a right.
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
        """Add grants, or take them away, all or none; those that are so already do not matter.

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
            key = {
                "subject": each.subject,
                "granted_right": each.right.value,
                "pattern": each.pattern,
            }
            if is_revoked:
                self._database.change(_DELETE, **key)
            elif not self._query(_FIND, **key):
                self._database.change(_ADD, **key)
