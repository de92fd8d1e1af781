"""The root of every error that this package raises on purpose."""

from __future__ import annotations


class LightningCoreError(Exception):
    """Base class of the errors of this package.

    Each child derives from the built-in exception that fits as well (``ValueError``, ``ConnectionError``, ...), so that
    code which knows nothing of this package can handle it.
    """
