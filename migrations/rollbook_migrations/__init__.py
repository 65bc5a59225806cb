"""The schema's history: the only place that creates tables, views and triggers."""

HEAD = "0007"
"""The revision this code works with."""

__all__ = ["HEAD"]
