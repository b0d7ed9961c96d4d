"""Landing streams in Iceberg tables: every committed record is in its table once, or not yet.

columns.py         the columns of a table, from those of the stream
files.py           the Parquet files of a table
synced_files.py    local files, which survive a power cut
table.py           one table: what has landed, by the summaries of its snapshots; the next commit
landing.py         one stream: records are collected, and committed by interval and size
service.py         all streams whose property `lake.table` names a table
status.py          how far streams have landed, and are behind
metrics.py         the same as metrics
history.py         the files of a table as record batches
history_client.py  a client to which a stream begins where its table does
"""

from typing import Final

TABLE_PROPERTY: Final = "lake.table"
"""The property of a stream that names its table: NAMESPACE.TABLE."""
TRIM_PROPERTY: Final = "lake.trim-after-ms"
"""The property of a stream whose records are trimmed once they have landed and are so old."""
ERROR_PROPERTY: Final = "lake.error"
"""The property in which `sbp lake` notes why a stream does not land; without it, it does."""
