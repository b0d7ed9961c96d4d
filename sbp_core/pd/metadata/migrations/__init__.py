"""The migrations of the metadata by Alembic; its revisions are the versions of `tables`.

In SQLite, `checksums.add_checksums` afterwards builds the tables again whose columns changed.
"""
