"""The part that runs user code: it holds the backend, and knows neither the ledger nor HTTP."""
