"""What depends on Spark's insides, which no release promises to keep.

Each module says what it depends on, and what it does where a release differs: reading and writing
then work as before, at most slower, or there is an error that says what to do.
"""

from __future__ import annotations

from typing import Final

SEEN_IN: Final = ("4.2.1", "4.3.0")
"""The releases of PySpark in which the tests have found these insides as they are taken here."""
