"""`Tensor` of `pb_utils`: a name and an array, or a DLPack tensor."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from .dtypes import CONFIG_OF_WIRE, NUMPY, WIRE, config_name
from .errors import TritonModelException

_CPU = 1
_LENGTH = struct.Struct("<I")


class Tensor:
    """A named tensor.

    Inputs are views on where the client put them: one in a client's region can be read only, and all of them are valid
    until `execute` returns.
    """

    __slots__ = ("_array", "_bf16", "_dlpack", "_name", "_readonly")

    def __init__(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"Tensor '{name}' needs a numpy.ndarray, got {type(array).__name__}")
        try:
            config_name(array.dtype)
        except ValueError as error:
            raise TritonModelException(f"Tensor '{name}': {error}") from None
        self._name = name
        self._array = array
        self._dlpack: Any = None
        self._bf16 = False
        self._readonly = False

    @classmethod
    def of_input(
        cls, name: str, dtype: str, shape: tuple[int, ...], memory: Any, offset: int, nbytes: int, owned: bool
    ) -> Tensor:
        """A view on an input; `dtype` is the protocol's name, `owned` says that nobody else writes the memory."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._dlpack, tensor._bf16 = name, None, dtype == "BF16"
        tensor._readonly = not owned
        if dtype == "BYTES":
            tensor._array = _strings(bytes(memoryview(memory)[offset : offset + nbytes]), shape)
            tensor._readonly = False
        else:
            kind = np.uint16 if dtype == "BF16" else NUMPY[CONFIG_OF_WIRE[dtype]]
            tensor._array = np.ndarray(shape, kind, memory, offset)
        return tensor

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor of another library: an object with `__dlpack__`, or what its `to_dlpack` gave.

        Raises:
            TritonModelException: for what is neither.
        """
        if not hasattr(tensor, "__dlpack__"):
            if type(tensor).__name__ != "PyCapsule":
                kind = type(tensor).__name__
                raise TritonModelException(f"Tensor '{name}': expected a DLPack capsule or tensor, got {kind}")
            tensor = _Capsule(tensor)
        made = Tensor.__new__(Tensor)
        made._name, made._dlpack, made._readonly = name, tensor, False
        made._array, made._bf16 = _from_dlpack(tensor)
        return made

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The array; BYTES are an array of `bytes` objects.

        Raises:
            TritonModelException: for BF16, which NumPy does not have; take `to_dlpack`.
        """
        if self._bf16:
            raise TritonModelException(f"Tensor '{self._name}' is BF16, which NumPy does not have; use to_dlpack")
        if self._readonly:
            view = self._array.view()
            view.flags.writeable = False
            return view
        return self._array

    def triton_dtype(self) -> str:
        """`TYPE_FP32`, for example."""
        return "TYPE_BF16" if self._bf16 else config_name(self._array.dtype)

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Whether it is in the host's memory."""
        return self._dlpack is None or self._dlpack.__dlpack_device__()[0] == _CPU

    def to_dlpack(self) -> Any:
        """A DLPack capsule of it."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        """A DLPack capsule of it."""
        if self._dlpack is not None:
            return self._dlpack.__dlpack__() if stream is None else self._dlpack.__dlpack__(stream=stream)
        if self._bf16:
            return (
                _torch(self._name).from_numpy(self._array.view(np.int16)).view(_torch(self._name).bfloat16).__dlpack__()
            )
        del options
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and number of the device that it is on."""
        if self._dlpack is not None:
            kind, number = self._dlpack.__dlpack_device__()
            return int(kind), int(number)
        return _CPU, 0


class _Capsule:
    """A bare capsule, as an object that NumPy and PyTorch take. It can be used once, as they are."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def _from_dlpack(tensor: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """Its elements in the host's memory, and whether they are BF16 (then as integers of two bytes)."""
    kind = getattr(tensor, "dtype", None)
    if str(kind) == "torch.bfloat16":
        import torch

        return tensor.contiguous().cpu().view(torch.int16).numpy().view(np.uint16), True
    if tensor.__dlpack_device__()[0] == _CPU:
        return np.from_dlpack(tensor), False
    if hasattr(tensor, "cpu"):
        return np.asarray(tensor.cpu().numpy()), False
    if hasattr(tensor, "get"):  # CuPy
        return np.asarray(tensor.get()), False
    return np.asarray(_torch("on a GPU").from_dlpack(tensor).cpu().numpy()), False


def _torch(what: str) -> Any:
    try:
        import torch
    except ImportError:
        raise TritonModelException(f"Tensor {what}: this needs PyTorch in the model's environment") from None
    return torch


def _strings(data: bytes, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array(deserialize(data), dtype=np.object_).reshape(shape)


def deserialize(data: bytes) -> list[bytes]:
    """The elements of a BYTES tensor: each is its length (u32, little endian) and its bytes."""
    elements, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4 + length
        elements.append(data[at - length : at])
    return elements


def serialize(array: np.ndarray[Any, Any]) -> bytes:
    """A BYTES tensor of an array of strings, bytes or other objects, whose text is taken."""
    parts = []
    for element in _elements(array):
        data = element if isinstance(element, bytes) else str(element).encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def _elements(array: np.ndarray[Any, Any]) -> Iterable[Any]:
    return array.ravel().tolist()


def wire_type(tensor: Tensor) -> str:
    """The protocol's name of its type."""
    return WIRE[tensor.triton_dtype()]
