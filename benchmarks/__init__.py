"""Measurements: ``python -m benchmarks.NAME [--quick|--full] --json FILE``."""
