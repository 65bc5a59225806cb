"""How fast and how small Rollbook is, measured: `python -m benchmarks [NAME…] [--quick] [--write]`."""
