"""Runs the command ``lightning-core`` for ``python -m lightning_core``."""

import sys

from lightning_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
