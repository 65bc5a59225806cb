"""The ledger on SQLite: one file, one machine, nothing to install."""
