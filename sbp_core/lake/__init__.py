"""Landing streams in Iceberg tables: every committed record is in its table once, or not yet.

columns.py    the columns of a table, from those of the stream
table.py      one table: what has landed, by the summaries of its snapshots, and the next commit
landing.py    one stream: records are collected, and committed by interval and size
service.py    all streams whose property `lake.table` names a table
"""

from typing import Final

TABLE_PROPERTY: Final = "lake.table"
"""The property of a stream that names its table: NAMESPACE.TABLE."""
