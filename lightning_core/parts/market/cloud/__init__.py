"""Provisioners, one file each, which bring nodes and take them away, and sources of quotes."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from lightning_core.core.parts import brought
from lightning_core.parts.market.cloud.autoscaler_provisioner import AutoscalerProvisioner
from lightning_core.parts.market.cloud.command_provisioner import CommandProvisioner
from lightning_core.parts.market.cloud.provisioner import Provisioner
from lightning_core.parts.market.cloud.skypilot_clusters import check_skypilot
from lightning_core.parts.market.cloud.skypilot_provisioner import SkyPilotProvisioner
from lightning_core.parts.market.cloud.skypilot_task import NAME as SKYPILOT
from lightning_core.parts.market.cloud.skypilot_task import read_task

__all__ = ["PROVISIONERS", "AutoscalerProvisioner", "CommandProvisioner", "SkyPilotProvisioner", "anchor_provision",
           "check_provision", "make_provisioner", "parse_provision"]  # fmt: skip

PROVISIONERS: Mapping[str, Callable[[str, str, Sequence[str]], Provisioner]] = MappingProxyType(
    {
        "autoscaler": lambda pool, resource, words: AutoscalerProvisioner(resource, pool=pool, words=words),
        "command": lambda pool, resource, words: CommandProvisioner(words, pool),
        SKYPILOT: lambda pool, resource, words: SkyPilotProvisioner(words, pool, resource),
    }
)
"""Factories of the provisioners of a Ray cluster, by name.

Their arguments are the name of the pool, the resource of a device, and the words after the provisioner's name.

Importing them starts nothing and imports neither Ray nor SkyPilot.
"""


def parse_provision(text: str | None) -> tuple[str, list[str]]:
    """Return the name of a provisioner and the words after it.

    Args:
        text: ``NAME WORD...``, or a command; None for Ray's autoscaler.

    Example::

        >>> parse_provision(None), parse_provision("./nodes.sh --zone b")
        (('autoscaler', []), ('command', ['./nodes.sh', '--zone', 'b']))
    """
    words = ["autoscaler"] if text is None else shlex.split(text)
    is_named = words and (words[0] in PROVISIONERS or brought("provisioners", words[0]) is not None)
    return (words[0], words[1:]) if is_named else ("command", words)


def anchor_provision(text: str, folder: Path) -> str:
    """Return the text of a provisioner with the file that it names made absolute, if it names one.

    Args:
        text: As for :func:`parse_provision`.
        folder: Folder to which paths are relative.

    Example::

        >>> anchor_provision("skypilot node.yaml", Path("/etc/pool"))
        'skypilot /etc/pool/node.yaml'
    """
    name, words = parse_provision(text)
    return shlex.join([name, *(str(folder / Path(word).expanduser()) for word in words)]) if name == SKYPILOT else text


def make_provisioner(name: str, pool: str, resource: str, words: Sequence[str]) -> Provisioner:
    """Return a new provisioner: one of the library's own, or of another package.

    Args:
        name: Its name.
        pool: Name of the pool.
        resource: Ray resource of a device.
        words: Words after the name.

    Raises:
        KeyError: If there is none of that name.
    """
    make = PROVISIONERS.get(name)
    if make is None:
        found = brought("provisioners", name)
        if found is None:
            raise KeyError(name)
        make = found[0]
    made: Provisioner = make(pool, resource, words)
    return made


def check_provision(text: str | None, *, simulated: bool) -> None:
    """Check that there is what is to bring nodes.

    Args:
        text: As for :func:`parse_provision`.
        simulated: Whether nodes are processes of this machine.

    Raises:
        ValueError: If it is none for nodes of this machine, its command does not exist, or SkyPilot cannot bring what
            its file says.
    """
    if text is None:
        return
    if simulated:
        raise ValueError("provision brings up nodes of a Ray cluster: it needs --ray ADDRESS")
    name, command = parse_provision(text)
    if name == "command" and (not command or shutil.which(command[0]) is None):
        raise ValueError(f"provision: command not found: {command[0] if command else 'none'}")
    if name == SKYPILOT:
        check_skypilot(read_task(command))
