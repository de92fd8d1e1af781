r"""Memory of a process with its descendants, as the kernel counts it.

A reading of ``/proc/PID/smaps_rollup`` takes 11 ms in a process that has imported torch and Lightning, and 69 ms with a
tensor of 4 GiB more; it holds up neither the interpreter nor page faults. Measured on 2026-11-25 on two cores of a
virtual machine with Linux 6.18 (leave ``x`` out for the first figure)::

    python -m timeit -s "import torch, lightning.pytorch; x = torch.ones(1 << 30)" \
        "open('/proc/self/smaps_rollup').read()"
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lightning_core.node.cgroups import process_tree


def proportional_set_size(pid: int, root: Path = Path("/")) -> int:
    """Return the memory of a process and its descendants, in bytes; a page that n processes share counts 1/n in each.

    Descendants that may not be read are not counted.

    Raises:
        OSError: If the process itself cannot be read.
    """
    total = _pss(root, pid)
    for child in process_tree(root, pid)[1:]:
        with suppress(OSError):  # it has just ended, or is another user's
            total += _pss(root, child)
    return total


def _pss(root: Path, pid: int) -> int:
    text = (root / "proc" / str(pid) / "smaps_rollup").read_text()
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/{pid}/smaps_rollup has no line 'Pss:'")
