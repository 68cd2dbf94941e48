"""The options of `headrace serve`: one table for the command line, the environment and the docs.

A field is an option: `http_port` is `--http-port` and `HEADRACE_HTTP_PORT`. Names and defaults are Triton's
wherever Triton has the option (reference: its command line parser); what becomes of Triton's other flags is in
`headrace/config/flags.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from headrace.config.backend_config import BackendConfig, parse_backend_config
from headrace.config.latencies import parse_latencies
from headrace.config.pbtxt import ConfigRules
from headrace.config.restricted import GRPC_PREFIX, parse_restricted
from headrace.core.errors import ConfigError
from headrace.core.latencies import Latencies

ClientShm = Literal["local", "true", "false"]
CompressionLevel = Literal["none", "low", "medium", "high"]
ControlMode = Literal["none", "explicit"]
LogFormat = Literal["default", "ISO8601"]
ALL_MODELS = "*"
"""The `--load-model` that means every model."""


def _option(default: Any, text: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": text, **limits})


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What a server is started with.

    Raises:
        ConfigError: when options contradict each other.
    """

    model_repository: tuple[Path, ...] = _option((), "Directory of models, as the positional MODELS. Repeatable.")
    model_control_mode: ControlMode = _option(
        "none", "Which models are loaded: all (none), or --load-model (explicit)."
    )
    load_model: tuple[str, ...] = _option(
        (), "A model to load with --model-control-mode=explicit; * alone is all. Repeatable."
    )
    disable_auto_complete_config: bool = _option(
        False, "Serve configs as they are written; the model file does not complete them.", flag=True
    )
    model_config_name: str = _option("", "Use configs/NAME.pbtxt of the models that have it, not config.pbtxt.")
    exit_on_error: bool = _option(True, "End when a model cannot be loaded at the start; otherwise serve the others.")
    strict_readiness: bool = _option(True, "Ready only while every model is; otherwise as soon as none loads.")
    allow_http: bool = _option(True, "Open the HTTP door.")
    http_address: str = _option("0.0.0.0", "Address of the HTTP door.")
    http_port: int = _option(8000, "Port of the HTTP door; 0 takes a free one.", min=0, max=65535)
    http_max_input_size: int = _option(
        2**31 - 1, "Bytes of an HTTP body, also of what it decompresses to; by default as many as gRPC carries.", min=1
    )
    http_restricted_api: tuple[str, ...] = _option(
        (), "Verbs of HTTP that need a header, as <category>[,<category>...]:<header>=<value>. Repeatable."
    )
    allow_grpc: bool = _option(True, "Open the gRPC door.")
    grpc_address: str = _option("0.0.0.0", "Address of the gRPC door; unix:/path is a socket without a port.")
    grpc_port: int = _option(8001, "Port of the gRPC door; 0 takes a free one.", min=0, max=65535)
    grpc_infer_response_compression_level: CompressionLevel = _option(
        "none", "How hard gRPC replies are compressed for clients that accept gzip or deflate."
    )
    grpc_keepalive_time: int = _option(7_200_000, "Milliseconds between two pings of a gRPC connection.", min=1)
    grpc_keepalive_timeout: int = _option(
        20_000, "Milliseconds after which a connection that leaves a ping unanswered is closed.", min=1
    )
    grpc_restricted_protocol: tuple[str, ...] = _option(
        (), "The same for gRPC; the header is triton-grpc-protocol-<header>. Repeatable."
    )
    grpc_use_ssl: bool = _option(False, "TLS on the gRPC door; needs --grpc-server-cert and --grpc-server-key.")
    grpc_use_ssl_mutual: bool = _option(False, "TLS that asks clients for a certificate; needs --grpc-root-cert, too.")
    grpc_server_cert: str = _option("", "PEM file of the gRPC door's certificate.")
    grpc_server_key: str = _option("", "PEM file of the certificate's key.")
    grpc_root_cert: str = _option("", "PEM file of those who sign clients' certificates.")
    allow_metrics: bool = _option(True, "Serve the metrics page.")
    metrics_address: str | None = _option(None, "Address of the metrics page; the HTTP door's by default.")
    metrics_port: int = _option(8002, "Port of the metrics page; 0 takes a free one.", min=0, max=65535)
    allow_gpu_metrics: bool = _option(True, "Figures of GPUs on the metrics page.")
    allow_cpu_metrics: bool = _option(True, "Figures of CPUs and memory on the metrics page.")
    metrics_interval_ms: int = _option(
        2000, "Figures of GPUs and CPUs are taken when the page is read, and not again within this time.", min=1
    )
    metrics_config: tuple[str, ...] = _option(
        (),
        "Which latencies the metrics page has: counter_latencies, histogram_latencies or summary_latencies=true|false, "
        "summary_quantiles=<quantile>:<error>,... Repeatable.",
    )
    backend_config: tuple[str, ...] = _option(
        (), "Setting of a backend, as <backend>,<key>=<value>, or of all, as <key>=<value>. Repeatable."
    )
    log_verbose: int = _option(
        0, "0 logs one line per event; 1 and more also what each decision was.", min=0, switch=True
    )
    log_info: bool = _option(True, "Log events.")
    log_error: bool = _option(True, "Log errors.")
    log_format: LogFormat = _option("default", "Stamp of a line: LMMDD hh:mm:ss.ssssss, or YYYY-MM-DDThh:mm:ssZ L.")
    log_file: Path | None = _option(None, "File that the log is appended to; stderr by default.")
    exit_timeout_secs: int = _option(30, "Seconds that requests in flight get to finish at the end.", min=0)
    allow_client_shm: ClientShm = _option(
        "local",
        "Who may use shared memory: clients on this host (local), everyone (true), nobody (false).",
        switch=True,
    )
    stall_secs: float = _option(60.0, "Ready turns false when an instance holds a batch for longer.", min=0.1)
    client_pause_secs: float = _option(
        30.0, "A client that pauses for longer within a message, or while it takes a reply, is given up.", min=0.01
    )
    idle_timeout_secs: float = _option(
        600.0, "A connection without a request is closed after this time; over gRPC before twice of it.", min=0.01
    )
    max_in_flight_requests: int = _option(100_000, "More requests than this are refused at once.", min=1)
    max_in_flight_bytes: int = _option(8 << 30, "Messages of more bytes than this in sum are refused at once.", min=1)
    wire_threads: int = _option(0, "Threads of the doors; 0 chooses by the number of cores.", min=0, max=256)
    simulate_gpus: int = _option(0, "Serve on so many simulated GPUs, which take time and move nothing.", min=0, max=16)
    simulate_link_gb: float = _option(53.0, "GB/s of a simulated GPU's link, each direction.", min=1e-6)
    id: str = _option("headrace", "The server's name in its metadata.")

    def __post_init__(self) -> None:
        _ = (
            self.backends,
            self.latencies,
            self.restricted_http,
            self.restricted_grpc,
        )  # what is wrong with them shows here
        if self.load_model and self.model_control_mode != "explicit":
            raise ConfigError("--load-model needs --model-control-mode=explicit")
        if self.model_control_mode == "explicit" and not self.load_model:
            raise ConfigError(
                "--model-control-mode=explicit needs --load-model: requests to load a model are not served yet"
            )
        if ALL_MODELS in self.load_model and len(self.load_model) > 1:
            raise ConfigError(f"--load-model={ALL_MODELS} must be the only --load-model")
        _ = self.grpc_tls
        if not (self.allow_http or self.allow_grpc):
            raise ConfigError("--allow-http and --allow-grpc are both false: nobody could ask this server anything")

    @property
    def config_rules(self) -> ConfigRules:
        """How the configs of models are read."""
        return ConfigRules(
            auto_complete=not self.disable_auto_complete_config, name=self.model_config_name, backends=self.backends
        )

    @property
    def backends(self) -> BackendConfig:
        """The settings of backends."""
        return parse_backend_config(self.backend_config)

    @property
    def latencies(self) -> Latencies:
        """The latencies of the metrics page."""
        return parse_latencies(self.metrics_config)

    @property
    def restricted_http(self) -> list[tuple[str, str, str]]:
        """Category, header and value of the verbs of HTTP that need a header."""
        return parse_restricted("--http-restricted-api", self.http_restricted_api)

    @property
    def restricted_grpc(self) -> list[tuple[str, str, str]]:
        """The same for gRPC."""
        return parse_restricted("--grpc-restricted-protocol", self.grpc_restricted_protocol, GRPC_PREFIX)

    @property
    def grpc_tls(self) -> tuple[str, str, str | None] | None:
        """Files of the gRPC door's certificate, its key, and of those who sign clients' certificates."""
        mutual = self.grpc_use_ssl_mutual
        if not (self.grpc_use_ssl or mutual):
            return None
        flag = "--grpc-use-ssl-mutual" if mutual else "--grpc-use-ssl"
        needed = ["grpc_server_cert", "grpc_server_key", *(["grpc_root_cert"] if mutual else [])]
        if missing := [flag_of(name) for name in needed if not getattr(self, name)]:
            raise ConfigError(f"{flag} needs {' and '.join(missing)}")
        if self.grpc_address.startswith("unix:"):
            raise ConfigError(f"{flag} is for ports, and --grpc-address={self.grpc_address} is none")
        return self.grpc_server_cert, self.grpc_server_key, self.grpc_root_cert if mutual else None

    def describe(self) -> list[tuple[str, Any, str]]:
        """Rows of flag, value and help text."""
        return [(flag_of(row.name), getattr(self, row.name), row.metadata["help"]) for row in fields(self)]


def flag_of(field_name: str) -> str:
    """`--http-port` of `http_port`."""
    return f"--{field_name.replace('_', '-')}"
