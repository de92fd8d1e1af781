"""The published loss curves that ``--curves DIR`` takes: 229 recordings in one archive, with their sources.

``python -m benchmarks.curves.published DIR`` unpacks them to a new folder; PUBLISHED.md says where they come from.
"""

from __future__ import annotations

import argparse
import lzma
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
ARCHIVE, PAGE = HERE / "published.tar.xz", HERE / "PUBLISHED.md"


def pack(folder: Path, archive: Path = ARCHIVE) -> None:
    """Write the CSVs of a folder, and the page with their sources and licences, as a reproducible archive.

    Args:
        folder: Folder with ``index.csv`` and the recordings.
        archive: File to write. The same files give the same bytes, whatever their owners and dates.
    """
    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as packed,
    ):
        for path in sorted([PAGE, *folder.glob("*.csv")], key=lambda path: path.name):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            with path.open("rb") as file:
                packed.addfile(member, file)


def unpack(folder: Path, archive: Path = ARCHIVE) -> Path:
    """Write the recordings to a folder.

    Args:
        folder: New or empty folder.
        archive: Archive of :func:`pack`.

    Returns:
        The folder.

    Raises:
        FileExistsError: If there is anything in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: is not empty, and nothing is overwritten; name a new folder")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves.published", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder for the recordings")
    try:
        folder = unpack(parser.parse_args().folder)
    except OSError as error:
        parser.error(str(error))
    print(f"{len(list(folder.glob('*__*.csv')))} recordings in {folder}; benchmarks take it as --curves {folder}")


if __name__ == "__main__":
    main()
