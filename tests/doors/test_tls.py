"""TLS of the gRPC door, as Triton's flags have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import trustme
from tritonclient.utils import InferenceServerException

from tests import models
from tests.servers import RunningServer


class Files:
    """PEM files of an authority, a server and a client."""

    def __init__(self, root: Path) -> None:
        authority = trustme.CA()
        server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("client@example.org")
        self.ca, self.cert, self.key = (str(root / name) for name in ("ca.pem", "server.pem", "server.key"))
        self.client_cert, self.client_key = str(root / "client.pem"), str(root / "client.key")
        authority.cert_pem.write_to_path(self.ca)
        for pair, cert, key in ((server, self.cert, self.key), (client, self.client_cert, self.client_key)):
            pair.private_key_pem.write_to_path(key)
            for place, blob in enumerate(pair.cert_chain_pems):
                blob.write_to_path(cert, append=place > 0)

    def options(self) -> list[str]:
        return [f"--grpc-server-cert={self.cert}", f"--grpc-server-key={self.key}", f"--grpc-root-cert={self.ca}"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module", params=["headrace", pytest.param("oracle", marks=pytest.mark.oracle)])
def start_server(request, tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write = models.oracle_identity if request.param == "oracle" else models.identity
    write(repository, "echo", "FP32", [-1], max_batch=4)
    start = request.getfixturevalue("start_judge" if request.param == "oracle" else "start")
    return lambda *options: start(repository, *options)


@pytest.fixture(scope="module")
def server(start_server, files) -> RunningServer:
    return start_server("--grpc-use-ssl=true", *files.options())


@pytest.fixture(scope="module")
def mutual(start_server, files) -> RunningServer:
    return start_server("--grpc-use-ssl-mutual=true", "--grpc-use-ssl=true", *files.options())


def infer(client: grpcclient.InferenceServerClient, count: int = 8) -> None:
    array = np.arange(count, dtype=np.float32).reshape(1, -1)
    tensor = grpcclient.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    np.testing.assert_array_equal(client.infer("echo", [tensor]).as_numpy("OUTPUT0"), array)


def test_a_client_that_trusts_the_authority_is_served(server, files) -> None:
    with grpcclient.InferenceServerClient(server.grpc, ssl=True, root_certificates=files.ca) as client:
        assert client.is_server_ready()
        infer(client)
        infer(client, 1 << 20)  # many records, many frames


def test_a_client_without_tls_is_not(server) -> None:
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="UNAVAILABLE"),
    ):
        client.is_server_live()


def test_mutual_tls_asks_the_client_for_a_certificate(mutual, files) -> None:
    with (
        grpcclient.InferenceServerClient(mutual.grpc, ssl=True, root_certificates=files.ca) as stranger,
        pytest.raises(InferenceServerException, match="UNAVAILABLE"),
    ):
        stranger.is_server_live()
    with grpcclient.InferenceServerClient(
        mutual.grpc,
        ssl=True,
        root_certificates=files.ca,
        certificate_chain=files.client_cert,
        private_key=files.client_key,
    ) as client:
        infer(client)


def test_what_is_wrong_with_a_file_is_said(start, tmp_path, files) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    (tmp_path / "models").mkdir()
    empty, absent = tmp_path / "empty.pem", tmp_path / "absent.pem"
    for cert, key, problem in [
        (absent, files.key, "absent.pem' cannot be used"),
        (empty, files.key, "has no certificate"),
        (files.cert, files.cert, "server.pem' cannot be used"),
        (files.cert, files.client_key, "cannot be used"),
    ]:
        with pytest.raises(RuntimeError) as failed:
            start(tmp_path / "models", "--grpc-use-ssl=true", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}")
        assert problem in " ".join(str(failed.value).replace("│", " ").split())
