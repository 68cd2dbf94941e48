"""Classes of the protocol's messages, made from the descriptors that the extension carries.

The descriptors live in a pool of their own: a process that also imports `tritonclient` (its tests do) has the
same names in protobuf's default pool, and the two must not meet.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format
from google.protobuf.message import DecodeError, Message

from headrace.core.errors import HeadraceError, Kind
from headrace.core.wire import descriptors

POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
    POOL.Add(_file)


def message_class(name: str) -> type[Any]:
    """The class of a message of package `inference`, by its name without the package."""
    descriptor = POOL.FindMessageTypeByName(f"inference.{name}")
    return message_factory.GetMessageClass(descriptor)


ModelConfig = message_class("ModelConfig")
ModelStatistics = message_class("ModelStatistics")

RPCS: dict[str, tuple[type[Any], type[Any]]] = {
    method.name: (
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
    )
    for method in POOL.FindServiceByName("inference.GRPCInferenceService").methods
}
"""Request and response class of each RPC."""


def parse(message: Any, payload: bytes) -> Any:
    """Reads `payload` into a new instance of a message class.

    Raises:
        HeadraceError: INVALID_ARGUMENT when the bytes are no such message.
    """
    try:
        return message.FromString(payload)
    except DecodeError as error:
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"failed to parse {message.DESCRIPTOR.name}: {error}") from error


def parse_text(text: str, message: Message) -> None:
    """Reads protobuf text format into `message`; raises `google.protobuf.text_format.ParseError`."""
    text_format.Parse(text, message, descriptor_pool=POOL)


def to_json(message: Message) -> dict[str, Any]:
    """The message with proto field names, defaults included, and 64-bit integers as numbers like Triton's."""
    plain = json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=POOL,
    )
    return _integers_as_numbers(plain, message.DESCRIPTOR)


def _integers_as_numbers(plain: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    for name, value in plain.items():
        field = descriptor.fields_by_name[name]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            plain[name] = {
                key: _number(item, field.message_type.fields_by_name["value"]) for key, item in value.items()
            }
        elif isinstance(value, list):
            plain[name] = [_number(item, field) for item in value]
        else:
            plain[name] = _number(value, field)
    return plain


def _number(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _integers_as_numbers(value, field.message_type)
    if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return int(value)
    return value
