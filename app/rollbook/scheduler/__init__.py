"""Scheduler processes: they own claims, supervise runners and sweep; they run no user code themselves."""
