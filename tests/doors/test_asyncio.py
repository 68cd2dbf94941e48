"""Triton's asyncio clients, over gRPC and HTTP: their calls pass unchanged."""

from __future__ import annotations

import asyncio
import uuid
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests import models
from tests.servers import RunningServer

CLIENTS = [(grpc_aio, grpcclient, "grpc"), (http_aio, httpclient, "http")]


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [4])
    models.identity(repository, "strings", "STRING", [2])
    return start(repository)


@pytest.mark.parametrize(("aio", "module", "door"), CLIENTS, ids=["grpc", "http"])
def test_calls_of_the_asyncio_clients(server: RunningServer, aio: ModuleType, module: ModuleType, door: str) -> None:
    asyncio.run(use(aio, module, getattr(server, door)))


async def use(aio: ModuleType, module: ModuleType, url: str) -> None:
    async with aio.InferenceServerClient(url) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("echo")
        assert name_of(await client.get_server_metadata()) == "headrace"
        assert name_of(await client.get_model_metadata("echo")) == "echo"
        assert await client.get_model_config("echo")
        assert await client.get_inference_statistics("echo")
        assert await client.get_model_repository_index()
        await infer_many(client, module)
        await use_region(client, module)
        with pytest.raises(InferenceServerException, match="'nobody' is not found"):
            await client.get_model_metadata("nobody")


def name_of(metadata) -> str:
    return metadata["name"] if isinstance(metadata, dict) else metadata.name


async def infer_many(client, module: ModuleType) -> None:
    async def echo(value: float) -> None:
        row = np.full((1, 4), value, np.float32)
        tensor = module.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(row)
        np.testing.assert_array_equal((await client.infer("echo", [tensor])).as_numpy("OUTPUT0"), row)

    await asyncio.gather(*(echo(value) for value in range(50)))
    words = np.array([["a", "é"]], np.object_)
    tensor = module.InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(words)
    answer = (await client.infer("strings", [tensor])).as_numpy("OUTPUT0")
    assert [word.decode() for word in answer.flat] == ["a", "é"]


async def use_region(client, module: ModuleType) -> None:
    name = f"headrace_aio_{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region(name, f"/{name}", 32)
    try:
        row = np.arange(4, dtype=np.float32).reshape(1, 4)
        shm.set_shared_memory_region(region, [row])
        await client.register_system_shared_memory(name, f"/{name}", 32)
        tensor = module.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_shared_memory(name, 16)
        wanted = module.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 16, 16)
        await client.infer("echo", [tensor], outputs=[wanted])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [4], 16), row[0])
        assert await client.get_system_shared_memory_status(name)
        await client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(region)
