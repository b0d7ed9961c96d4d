"""Which streams a consumer reads: names, and patterns of names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError, NotFoundError, StatusCode
from sbp_core.wording import listed

_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams by names, by how their names begin, and by ids. The patterns are those of grants.

    The servers' own streams are selected by patterns that begin as their names do, not by `*`.
    """

    names: frozenset[str]
    prefixes: frozenset[str]
    ids: frozenset[int] = frozenset()

    def __str__(self) -> str:
        patterns = (f"{each}{_ANY}" for each in self.prefixes)
        return listed(sorted((*self.names, *patterns, *map(str, self.ids))))

    @property
    def has_ids_only(self) -> bool:
        """Whether the streams can be found without a list of all."""
        return not self.names and not self.prefixes

    @staticmethod
    def of(patterns: Sequence[str]) -> Selection:
        """Return what names, and begins of names followed by `*`, select.

        Raises ConfigurationError for other patterns, and for none.
        """
        if not patterns:
            raise ConfigurationError("a consumer of no stream: pass names, or * for all")
        for each in patterns:
            if not each or _ANY in each[:-1]:
                raise ConfigurationError(
                    f"{each!a} selects no streams: use a name, the begin of names followed by *, or"
                    " * for all"
                )
        return Selection(
            frozenset(each for each in patterns if not each.endswith(_ANY)),
            frozenset(each.removesuffix(_ANY) for each in patterns if each.endswith(_ANY)),
        )

    def of_streams(self, streams: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Return those of all streams that are selected. Raises NotFoundError for a missing name.

        A pattern may select none: streams that it matches may be created later.
        """
        found = [each for each in streams if self._has(each)]
        missing = self.names - {each.name for each in found}
        if missing:
            raise NotFoundError(
                StatusCode.NOT_FOUND,
                f"there is no stream {listed(sorted(missing))}; create it, or select streams"
                " that may be created later by a pattern",
            )
        return found

    def _has(self, stream: StreamInfo) -> bool:
        name = stream.name
        if name is None:
            return stream.stream_id in self.ids
        return (
            stream.stream_id in self.ids
            or name in self.names
            or any(name.startswith(each) for each in self.prefixes)
        )
