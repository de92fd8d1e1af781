"""Specs: a name with arguments as people write it, such as ``ahap:omega=5,commitment=2``, and families of parts."""

from lightning_core.core.specs.family import Family
from lightning_core.core.specs.spec import Spec, parse_spec

__all__ = ["Family", "Spec", "parse_spec"]
