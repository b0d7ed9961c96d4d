"""The migrations of the metadata by Alembic; its revisions are the versions of `tables`."""
