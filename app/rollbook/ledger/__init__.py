"""The append-only ledger: pure decisions, group commit, reads, wake-ups, secrets and verification."""
