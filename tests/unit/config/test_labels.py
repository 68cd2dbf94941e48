"""Label files, as people leave them."""

from __future__ import annotations

import pytest

from headrace.config.labels import label_remarks, read_labels
from headrace.config.model import model_spec
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text


def config(*filenames: str, dims: str = "3"):
    message = ModelConfig()
    outputs = [
        f'output {{ name: "y{number}" data_type: TYPE_FP32 dims: [{dims}] label_filename: {name!r} }}'
        for number, name in enumerate(filenames)
    ]
    parse_text(" ".join(outputs), message)
    return message


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\nhat\n", ("cat", "dog", "hat")),
        (b"cat\r\ndog\r\nhat", ("cat", "dog", "hat")),
        (b"\xef\xbb\xbfcat\n\nb\xc3\xa4r ", ("cat", "", "b\u00e4r ")),
        (b"", ()),
    ],
)
def test_one_label_a_line(tmp_path, content: bytes, labels: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    message = config("labels.txt")
    found = read_labels(message, tmp_path)
    assert found == {"y0": labels}
    assert model_spec(message, found).outputs[0].labels == labels


def test_every_file_that_cannot_be_read_is_told(tmp_path) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (model / "link").symlink_to(tmp_path / "secret")
    (model / "bytes").write_bytes(b"\xff")
    (model / "good").write_text("a")
    names = ["missing.txt", "../secret", str(tmp_path / "secret"), "link", "1", "bytes", "good", "a\0b"]
    with pytest.raises(ConfigError) as caught:
        read_labels(config(*names), model)
    expected = ["No such file", "outside", "outside", "outside", "directory", "'utf-8' codec", "null"]
    assert len(caught.value.problems) == len(expected)
    for problem, words in zip(caught.value.problems, expected, strict=True):
        assert "label_filename" in problem
        assert words in problem


def test_a_number_of_labels_that_does_not_fit_is_remarked(tmp_path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\n")

    def remarks(dims: str) -> list[str]:
        message = config("labels.txt", dims=dims)
        return list(label_remarks(model_spec(message, read_labels(message, tmp_path)).outputs))

    assert remarks("3") == ["output 'y0' has 2 labels for 3 elements"]
    assert remarks("2") == remarks("-1") == []
