"""What servers are told once Spark has committed a micro-batch; names of consumer groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sbp_core.limits import GROUP_NAME_LENGTH_MAX
from sbp_spark.options.reading import OptionReader, shown

_GROUP: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{GROUP_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The group whose cursors are set, and whether what was read is trimmed."""

    maybe_group: str | None = None
    is_trimming: bool = False


def maybe_group(text: str) -> str | None:
    """Return the name of a group, None if no group can be called so."""
    return text if _GROUP.fullmatch(text) else None


def read_commit_options(reader: OptionReader, *, is_batch: bool) -> CommitOptions:
    """Return what is done after a commit; a batch, which commits nothing, can do nothing."""
    text = reader.maybe_text("group")
    if text is not None and maybe_group(text) is None:
        expected = f"1 to {GROUP_NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
        reader.add_fault("group", f"is {shown(text)}", expected, "correct it, or leave it out")
    is_trimming = reader.flag("trimOnCommit", default=False)
    remedies = {
        "group": 'remove it; startingOffsets="group:NAME" reads from where a group is',
        "trimOnCommit": "remove it",
    }
    for name, remedy in remedies.items() if is_batch else ():
        if reader.is_given(name):
            wrong = "is given in a batch read, which commits nothing"
            reader.add_fault(name, wrong, "it in readStream only", remedy)
    return CommitOptions(text, is_trimming)
