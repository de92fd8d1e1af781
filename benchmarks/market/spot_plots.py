"""Pictures of the selection of spot market policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lightning_core.core.arrays import FloatArray


def weights(found: Mapping[str, FloatArray], ends: Sequence[int], path: Path) -> None:
    """Draw the weights of policies, of shape ``(jobs, policies)``, over the jobs; phases end at ``ends``."""
    figure = Figure(figsize=(9, 3 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, each) in zip(axes, found.items(), strict=True):
        shown = axis.imshow(
            np.maximum(each.T, 1e-4), aspect="auto", origin="lower", norm="log", vmin=1e-3, vmax=1, cmap="magma",
            interpolation="nearest",
        )  # fmt: skip
        for end in ends[:-1]:
            axis.axvline(end, color="white", linewidth=0.8, linestyle=":")
        axis.set_title(name, fontsize=10)
        axis.set_ylabel("policy")
        figure.colorbar(shown, ax=axis, label="weight")
    axes[-1].set_xlabel("job")
    figure.savefig(path, dpi=120)
