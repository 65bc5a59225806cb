"""Metrics in Prometheus' form, as far as APIs and schedulers tell them alike."""
