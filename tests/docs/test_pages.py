"""The pages tell of what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/statistics.md",
    "benchmarks/gpu/README.md",
    "docs/flags.md",
    "docs/coming-from-triton.md",
    "docs/onnx.md",
    "docs/tensorrt.md",
    "docs/differences.md",
    "examples/demo/README.md",
    "attacks/README.md",
]


def paths_in(page: str) -> list[str]:
    text = Path(page).read_text()
    links = re.findall(r"\]\(([\w./-]+)\)", text)
    names = re.findall(r"`((?:src|headrace|tests|benchmarks|attacks|examples|proto)/[\w./-]*|[\w-]+\.rs)`", text)
    return [str(Path(page).parent / link) for link in links] + names


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    missing = [path for path in paths_in(page) if not Path(path).exists()]
    assert missing == []


def test_architecture_names_every_room_and_rust_file() -> None:
    text = Path("ARCHITECTURE.md").read_text()
    rooms = [path.parent.name for path in Path("headrace").glob("*/__init__.py")]
    assert [room for room in rooms if f"headrace/{room}/" not in text] == []
    told = {Path(path).name for path in paths_in("ARCHITECTURE.md")}
    untold = {"lib.rs", "dtype.rs", "python.rs"}  # the module, a table, the face to Python: not on a request's way
    assert {path.name for path in Path("src").glob("*.rs")} - told == untold


def test_every_room_says_what_it_does_and_never_does() -> None:
    for path in Path("headrace").glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "Does:" in text, path
        assert "Never:" in text, path


def test_only_core_wire_imports_the_extension() -> None:
    importers = [
        str(path)
        for path in Path("headrace").rglob("*.py")
        if re.search(r"^(from|import) .*\b_wire\b", path.read_text(), re.MULTILINE)
    ]
    assert importers == ["headrace/core/wire.py"]


def test_unsafe_is_in_two_files() -> None:
    files = [path.name for path in Path("src").glob("*.rs") if re.search(r"\bunsafe\b *[{f]", path.read_text())]
    assert sorted(files) == ["buffer.rs", "shm.rs"]
