"""The peers: the real Triton and its perf_analyzer, from PyPI, in environments of their own under `.cache/bench`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import debian

HOME = Path(".cache/bench").absolute()
TRITON = "nvidia-pytriton==0.7.0"
"""Carries tritonserver 2.51.0 (release 24.10) with its Python backend."""
PERF_ANALYZER = "perf-analyzer==2.60.0"
CUDART = "nvidia-cuda-runtime-cu12==12.9.79"
"""perf_analyzer opens libcudart for any kind of shared memory, GPU or not."""
STUB = "triton_python_backend_stub"
C_IDENTITY = Path(__file__).with_name("identity_backend.c")


@dataclass(frozen=True)
class Program:
    """A command and the environment that it needs."""

    command: tuple[str, ...]
    environment: dict[str, str]


def triton() -> Program:
    """The real Triton, with `identity_c` beside its Python backend."""
    home = HOME / "triton"
    site = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    server = site / "pytriton" / "tritonserver"
    backends = server / "backends"
    if not (backends / "python" / STUB).exists():
        _install_triton(home, server)
    _build_identity(backends / "identity_c" / "libtriton_identity_c.so")
    libraries = [str(site / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
    environment = {
        # The Python backend's stub finds its interpreter through the first python3 on PATH.
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(libraries),
    }
    return Program((str(server / "bin" / "tritonserver"), "--backend-directory", str(backends)), environment)


def _install_triton(home: Path, server: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(home))
    _run(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", TRITON, "numpy<2")
    tag = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub = server / "python_backend_stubs" / tag / STUB
    if not stub.exists():
        raise SystemExit(f"{TRITON} has no Python backend for Python {tag}: run the benchmark with 3.11 or 3.12")
    for program in (stub, server / "bin" / "tritonserver"):
        program.chmod(0o755)
    shutil.copy(stub, server / "backends" / "python")  # last: its presence says that all is installed


def _build_identity(library: Path) -> None:
    """Compiles again when the source is newer."""
    if library.exists() and library.stat().st_mtime >= C_IDENTITY.stat().st_mtime:
        return
    library.parent.mkdir(exist_ok=True)
    _run("cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(C_IDENTITY))


def perf_analyzer() -> Program:
    """NVIDIA's load generator; HEADRACE_PERF_ANALYZER names another one.

    Its wheel needs glibc 2.38. Where the machine's is older, it runs with the libraries of a newer Debian.
    """
    cudart = str(_cudart())
    environment = {"LD_LIBRARY_PATH": cudart}
    given = os.environ.get("HEADRACE_PERF_ANALYZER")
    if given:
        return Program((given,), environment)
    program = HOME / "perf_analyzer" / "perf_analyzer" / "bin" / "perf_analyzer"
    if not program.exists():
        platform = ["--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_38_x86_64"]
        _unpack(PERF_ANALYZER, HOME / "perf_analyzer", *platform)
        program.chmod(0o755)
    if subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
        return Program((str(program),), environment)
    try:
        libraries = debian.libraries(HOME / "debian")
    except debian.UnavailableError as error:
        raise SystemExit(
            f"{program} does not run here (it needs glibc 2.38) and a newer one cannot be had: {error}; "
            "HEADRACE_PERF_ANALYZER names a perf_analyzer that runs"
        ) from error
    loader = libraries / debian.LOADER
    return Program((str(loader), "--library-path", f"{libraries}:{cudart}", str(program)), {})


def _cudart() -> Path:
    folder = HOME / "cudart" / "nvidia" / "cuda_runtime" / "lib"
    if not (folder / "libcudart.so").exists():
        _unpack(CUDART, HOME / "cudart")
        (folder / "libcudart.so").symlink_to("libcudart.so.12")
    return folder


def _unpack(package: str, target: Path, *options: str) -> None:
    """Downloads a wheel and unpacks it without installing it."""
    download = target.with_suffix(".download")
    shutil.rmtree(download, ignore_errors=True)
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(download), *options, package)
    (wheel,) = download.glob("*.whl")
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(part)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)  # whole or not at all


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
