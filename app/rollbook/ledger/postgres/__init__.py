"""The ledger on PostgreSQL: many processes on many machines."""
