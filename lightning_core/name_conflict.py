"""Another project on the package index, ``lightning-core``, installs a module of the same import name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


def describe_namesake() -> str | None:
    """Describe the other project if it is installed beside this one, with the remedy; ``None`` if it is not."""
    try:
        version = distribution("lightning-core").version
    except PackageNotFoundError:
        return None
    return (
        f"the package lightning-core {version} is also installed: another project with a module called lightning_core; "
        "which of the two is imported depends on the import path; run: pip uninstall lightning-core"
    )
