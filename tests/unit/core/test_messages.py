"""Our proto files say the same as Triton's, field by field."""

from __future__ import annotations

import json

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from headrace.core.errors import HeadraceError
from headrace.core.messages import POOL, RPCS, ModelConfig, parse, parse_text, to_json
from headrace.core.wire import descriptors


def ours() -> dict[str, object]:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file
    return flatten(files)


OUR_FIELDS = 100
"""Fields of our own have such numbers, which Triton's clients skip."""


def theirs() -> dict[str, object]:
    files = []
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return flatten(files)


def flatten(files) -> dict[str, object]:
    facts: dict[str, object] = {}

    def message(prefix: str, item) -> None:
        name = f"{prefix}.{item.name}"
        oneofs = [oneof.name for oneof in item.oneof_decl]
        for field in (field for field in item.field if field.number < OUR_FIELDS):
            oneof = oneofs[field.oneof_index] if field.HasField("oneof_index") else None
            facts[f"{name}.{field.name}"] = (field.number, field.type, field.label, field.type_name, oneof)
        for nested in item.nested_type:
            message(name, nested)
        for enum in item.enum_type:
            facts[f"{name}.{enum.name}"] = [(value.name, value.number) for value in enum.value]
        facts[name] = "message"

    for file in files:
        for item in file.message_type:
            message(file.package, item)
        for enum in file.enum_type:
            facts[f"{file.package}.{enum.name}"] = [(value.name, value.number) for value in enum.value]
        for service in file.service:
            for method in service.method:
                facts[f"{file.package}.{service.name}.{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return facts


def test_the_contract_is_tritons() -> None:
    mine, triton = ours(), theirs()
    differing = {
        name: (mine.get(name), triton.get(name))
        for name in mine.keys() | triton.keys()
        if mine.get(name) != triton.get(name)
    }
    assert differing == {}
    assert len(RPCS) == 20


def test_our_pool_is_ours_alone() -> None:
    assert POOL.FindMessageTypeByName("inference.ModelConfig") is not model_config_pb2.ModelConfig.DESCRIPTOR


def test_json_has_field_names_defaults_and_numbers() -> None:
    config = ModelConfig()
    parse_text(
        """
        name: "m" max_batch_size: 4
        input { name: "x" data_type: TYPE_FP16 dims: [3, -1] }
        version_policy: { specific: { versions: [3] } }
        instance_group { count: 2 kind: KIND_CPU }
        dynamic_batching {
          max_queue_delay_microseconds: 100
          priority_queue_policy { key: 1 value { max_queue_size: 5 } }
        }
        parameters { key: "k" value { string_value: "v" } }
        """,
        config,
    )
    plain = to_json(config)
    assert plain["input"][0]["dims"] == [3, -1]
    assert plain["input"][0]["data_type"] == "TYPE_FP16"
    assert plain["version_policy"]["specific"]["versions"] == [3]
    assert plain["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert plain["dynamic_batching"]["priority_queue_policy"]["1"]["max_queue_size"] == 5
    assert plain["instance_group"][0]["kind"] == "KIND_CPU"
    assert plain["platform"] == ""
    assert plain["parameters"]["k"] == {"string_value": "v"}
    json.dumps(plain)


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(HeadraceError, match="failed to parse ModelConfigRequest"):
        parse(RPCS["ModelConfig"][0], b"\xff\xff")
