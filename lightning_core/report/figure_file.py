"""Writer of Matplotlib figures to files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.storage.atomic_files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure, completely or not at all.

    Args:
        figure: Figure to write.
        path: File to write; its suffix is the format. Without one it is a PNG, and gets that suffix.
        dpi: Dots per inch.

    Raises:
        ValueError: If Matplotlib does not know the format.
        OSError: If the file cannot be written.
    """
    path = path if path.suffix else path.with_suffix(".png")
    content = BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower(), dpi=dpi)
    write_whole(path, content.getvalue())
