"""Measurements: ``python -m benchmarks.PART.NAME [--quick|--full] --json FILE``."""
