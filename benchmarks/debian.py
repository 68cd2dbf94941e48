"""The C library of a newer Debian, unpacked beside the machine's own; nothing on the machine is replaced."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

RELEASE = "trixie"
PACKAGES = ("libc6", "libstdc++6", "libgcc-s1", "libssl3t64", "zlib1g", "libzstd1")
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LOADER = "ld-linux-x86-64.so.2"


class UnavailableError(Exception):
    """Says why this machine cannot get the packages."""


def libraries(home: Path) -> Path:
    """The folder of the newer libraries and their loader; downloads the packages on first use.

    Raises:
        UnavailableError: on a machine without apt or without a Debian mirror, or when apt fails.
    """
    root = home / "root"
    if not root.exists():
        _install(home, root)
    return next(root.rglob("libc.so.6")).parent


def _install(home: Path, root: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and KEYRING.exists()):
        raise UnavailableError("no apt-get, dpkg-deb or Debian keyring here")
    shutil.rmtree(home, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "debs", "part"):
        (home / folder).mkdir(parents=True)
    (home / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": home / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::Lists": home / "lists",
        "Dir::Cache": home / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    _run([*apt, "update"], home)
    _run([*apt, "download", *PACKAGES], home / "debs")
    for package in (home / "debs").glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(home / "part")], home)
    (home / "part").rename(root)


def _mirror() -> str:
    """The mirror that this machine's own apt uses."""
    for path in SOURCES:
        text = path.read_text() if path.exists() else ""
        found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) +(\S*/debian)/?(?:\s|$)", text, re.MULTILINE)
        if found:
            return found[1]
    raise UnavailableError("this machine's apt has no Debian mirror")


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{command[0]} {command[-1]} failed: {done.stderr.strip()}")
