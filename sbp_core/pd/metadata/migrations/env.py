"""Runs the migrations on the connection, and in the transaction, of the caller."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
