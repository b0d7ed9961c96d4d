"""Which streams a consumer reads: names, and patterns of names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError, NotFoundError, StatusCode

_WILD: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams by name, and patterns of names, in which `*`, `?` and `[...]` are as in a shell."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @staticmethod
    def of(texts: Sequence[str]) -> Selection:
        """Return what these names and patterns select. Raises ConfigurationError for none."""
        if not texts:
            raise ConfigurationError("a consumer of no stream: pass a name or a pattern such as *")
        wild = [bool(_WILD & set(text)) for text in texts]
        return Selection(
            tuple(text for text, is_wild in zip(texts, wild, strict=True) if not is_wild),
            tuple(text for text, is_wild in zip(texts, wild, strict=True) if is_wild),
        )

    def of_streams(self, streams: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Return those of all streams that are selected. Raises NotFoundError for a missing name.

        A pattern may select none: streams that it matches may be created later.
        """
        found = [each for each in streams if each.name is not None and self._has(each.name)]
        missing = set(self.names) - {each.name for each in found}
        if missing:
            raise NotFoundError(
                StatusCode.NOT_FOUND,
                f"there is no stream {', '.join(sorted(missing))}; create it, or select streams"
                " that may be created later by a pattern",
            )
        return found

    def _has(self, name: str) -> bool:
        return name in self.names or any(fnmatchcase(name, each) for each in self.patterns)
