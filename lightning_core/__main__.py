"""``python -m lightning_core`` is ``lightning-core``."""

import sys

from lightning_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
