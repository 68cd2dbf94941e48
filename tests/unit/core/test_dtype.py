"""Element types."""

from headrace.core.dtype import BYTES, DTYPES, from_config_name
from headrace.core.tensor import TensorRef


def test_sizes_are_those_of_the_names() -> None:
    for name, dtype in DTYPES.items():
        bits = int("".join(filter(str.isdigit, name)) or 8)
        assert dtype.itemsize * 8 == bits
        assert from_config_name(f"TYPE_{name}") is dtype


def test_types_without_a_fixed_size_are_not_there() -> None:
    assert from_config_name("TYPE_STRING") is BYTES
    assert BYTES.config_name == "TYPE_STRING"
    assert from_config_name("TYPE_INVALID") is None


def test_bytes_of_a_reference() -> None:
    assert TensorRef(0, DTYPES["FP16"], (3, 384, 640)).nbytes == 1_474_560
    assert TensorRef(0, DTYPES["FP32"], ()).nbytes == 4
    assert TensorRef(0, BYTES, (2,), 11).nbytes == 11
    assert TensorRef(0, BYTES, (0,)).nbytes == 0
    assert TensorRef(0, DTYPES["FP32"], (2, 0)).nbytes == 0
