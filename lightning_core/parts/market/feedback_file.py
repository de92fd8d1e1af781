"""The file in which a run or pool leaves the feedback of its jobs for the next one's selector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.names import listed
from lightning_core.parts.market.selector import MAX_NUMBERS

# Name of the file in the folder of a run or pool, and its version.
FEEDBACK, VERSION = "feedback.json", 1
MAX_BYTES = 2**26

Rows = tuple[tuple[float, ...], ...]


def feedback_to_text(policies: Sequence[str], utilities: FloatArray) -> str:
    """Return the text of a file.

    Args:
        policies: Specs of the policies.
        utilities: Utility of each policy for each job, 0 to 1, shape ``(jobs, policies)``.
    """
    rows = [[round(one, 6) for one in row] for row in utilities.tolist()]
    return json.dumps({"version": VERSION, "policies": list(policies), "utilities": rows}) + "\n"


def read_feedback(path: Path, policies: Sequence[str]) -> Rows:
    """Return the utilities of policies, one row a job, from a file or from that in a folder.

    Args:
        path: File, or folder of a run or pool.
        policies: Specs of the policies. The file may have more, and in another order.

    Raises:
        ValueError: If there is no such file, or it has another form, or lacks a policy.
    """
    path = path / FEEDBACK if path.is_dir() else path
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"must have at most {MAX_BYTES} bytes")
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["version"] != VERSION:
            raise ValueError(f"version must be {VERSION}, got {body['version']!r}")
        known = list(map(str, body["policies"]))
        table = np.array(body["utilities"], float).reshape(-1, len(known))
        if not ((table >= 0) & (table <= 1)).all():
            raise ValueError("utilities must be from 0 to 1")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not the feedback of a run: {error}") from None
    if missing := [policy for policy in policies if policy not in known]:
        raise ValueError(f"{path}: has no feedback on {missing[0]!r}, only on {listed(known)}")
    columns = [known.index(policy) for policy in policies]
    table = table[-(MAX_NUMBERS // len(columns)) :]
    return tuple(map(tuple, table[:, columns].tolist()))
