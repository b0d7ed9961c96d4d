"""The rights of subjects: table `grants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, delete, insert, select

from sbp_core.access.rights import GRANTS_MAX, Grant, Right
from sbp_core.errors import invalid
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import grants

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

    def change(self, changes: Sequence[Grant], *, is_revoked: bool) -> None:
        """Add grants, or take them away, all or none; those that are so already do not matter.

        Raises InvalidRequestError for more than GRANTS_MAX.
        """
        with self._database.transaction():
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
            if not is_revoked and self._database.count("grants") > GRANTS_MAX:
                raise invalid(
                    f"a cluster has {GRANTS_MAX} grants at most: revoke some, or use"
                    " patterns that match several streams"
                )
