"""Measurements: ``python -m benchmarks.NAME [--quick|--full] [--json [FILE]]``.

A benchmark runs by its name, with or without that of its folder: ``benchmarks.late`` is ``benchmarks.market.late``. No
two of them share a name.
"""

from pathlib import Path

__path__ += sorted(str(folder.parent) for folder in Path(__file__).parent.glob("*/__init__.py"))
