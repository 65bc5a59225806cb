"""Archives: events of rollouts that are over, moved to a file, and what stands in the ledger for them."""
