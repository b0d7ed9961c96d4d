"""Everything that depends on internals of Spark, which no release promises to keep.

Each module says what it depends on, and what it does if a release differs: reading and writing
then work as before, at most slower, or an error says what to do.
"""

from __future__ import annotations

from typing import Final

SEEN_IN: Final = ("4.2.0", "4.2.1", "4.3.0")
"""The releases of PySpark in which the tests found these internals as the code expects them."""

CHAR_VARCHAR_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Where the metadata of a column keep that its strings are char or varchar, also inside of it.
Without them a column has strings."""
PROVIDER_OPTION: Final = "provider"
"""The option that Spark adds to a CREATE TABLE without columns, and to nothing else. Without it
the options are checked as those of a read."""
