"""The HTTP server: routes parse, call and answer; the service decides nothing that the ledger can decide."""
