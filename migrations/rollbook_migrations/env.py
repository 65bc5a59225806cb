"""Runs the migrations on the connection that the caller opened, in its transaction."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `rollbook db upgrade`; it opens the database with the settings they need")
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
