"""What Headrace does as Triton does, and what it does better: each with the test that proves it.

What it does not do yet is not told here: that follows from the tables that the code itself uses (flags, calls,
backends, fields of a config, metrics). `headrace/cli/comparison.py` writes `docs/coming-from-triton.md` from all of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One of Triton's, or one in its place."""

    text: str
    proof: str
    """A test: its file, and its name where the whole file is not about it."""


SAME: Sequence[Feature] = (
    Feature("`tritonclient` over HTTP, gRPC and asyncio, unchanged", "tests/doors/test_asyncio.py"),
    Feature("Every datatype, bit by bit, through JSON, binary tensors, gRPC and regions", "tests/doors/test_infer.py"),
    Feature("BYTES tensors and their strings", "tests/doors/test_strings.py"),
    Feature("Typed contents, binary outputs, bodies of nothing but one tensor", "tests/doors/test_contents.py"),
    Feature("Classification with labels", "tests/doors/test_classification.py"),
    Feature("gzip and deflate of requests and replies", "tests/doors/test_compression.py"),
    Feature("Status and key words of errors", "tests/doors/test_errors.py"),
    Feature("The health service of gRPC", "tests/doors/test_health.py"),
    Feature("Restricted APIs, over HTTP and gRPC", "tests/doors/test_restricted.py"),
    Feature("TLS of the gRPC door, with certificates of clients, too", "tests/doors/test_tls.py"),
    Feature("System shared memory: register, status, unregister, offsets", "tests/doors/test_regions.py"),
    Feature("CUDA shared memory by handle", "tests/doors/test_devices.py::test_cuda_regions_by_handle"),
    Feature("What is loaded and what is filled in of a config", "tests/doors/test_configs.py"),
    Feature("Versions side by side, by policy", "tests/property/test_versions.py"),
    Feature("`reshape` and optional inputs", "tests/doors/test_reshape.py"),
    Feature("Dynamic batching: preferred sizes and queue delay", "tests/property/test_policy.py"),
    Feature("Parameters of ONNX Runtime, and one pool of threads for all sessions", "tests/doors/test_onnx.py"),
    Feature("Names of inputs and outputs of PyTorch models", "tests/doors/test_pytorch.py"),
    Feature("What each number of the statistics counts", "tests/doors/test_statistics.py"),
    Feature("Families, types, labels and counts of the metrics", "tests/doors/test_metrics.py"),
    Feature("A signal finishes what is in flight; exit statuses", "tests/doors/test_stopping.py"),
    Feature("The arguments of KServe's Triton runtime", "tests/doors/test_flags.py"),
)
"""Asked of both servers by the tests, wherever the real Triton can be asked."""

BETTER: Sequence[Feature] = (
    Feature(
        "A system region is page-locked once and never touched by the CPU on its way to a GPU",
        "tests/doors/test_devices.py::test_a_page_locked_region_is_not_touched_by_the_cpu",
    ),
    Feature(
        "A single request on the CPU is computed in the client's own region",
        "tests/doors/test_regions.py::test_one_request_is_computed_in_place",
    ),
    Feature(
        "Every slower way that a tensor takes is counted by name",
        "tests/doors/test_devices.py::test_inline_tensors_are_staged_and_counted",
    ),
    Feature(
        "Clients that truncate regions, lie about lengths or stop reading cost nobody else anything",
        "tests/chaos/test_attacks.py::test_a_bystander_loses_nothing",
    ),
    Feature(
        "A GPU that fails for good takes its own requests with it; other GPUs serve on",
        "tests/doors/test_devices.py::test_a_lost_device_takes_its_own_requests_with_it_and_no_others",
    ),
    Feature(
        "*Ready* turns false, naming the model, when an instance hangs",
        "tests/doors/test_stopping.py::test_an_instance_that_hangs_is_named_and_ends_with_status_1",
    ),
    Feature(
        "A queued request whose client is gone takes no place in a batch, with dynamic batching or without",
        "tests/doors/test_batching.py::test_a_client_that_is_gone_takes_no_place",
    ),
    Feature(
        "All mistakes of a config are told at once, with line and nearest valid name",
        "tests/property/test_config_text.py::test_every_unknown_field_is_told",
    ),
    Feature(
        "`headrace check` says what a server would, without one",
        "tests/doors/test_configs.py::test_check_says_what_the_server_does",
    ),
    Feature(
        "The numbers of one answer of the statistics are of one moment",
        "tests/doors/test_statistics.py::test_the_numbers_of_one_moment_agree",
    ),
    Feature(
        "Histograms of every stage, cheap enough to be always on",
        "tests/doors/test_metrics.py::test_each_stage_has_each_request_once",
    ),
    Feature(
        "`counter_latencies=false` leaves the counts of requests alone",
        "tests/doors/test_metrics.py::test_without_counters_of_latencies_the_others_count_on",
    ),
    Feature(
        "Requests that are refused are counted, by door and kind of error",
        "tests/doors/test_metrics.py::test_refused_requests_by_door_and_kind",
    ),
)


@dataclass(frozen=True)
class Field:
    """A field of a model's config, and a config that uses it."""

    name: str
    example: str
    backend: str = "onnxruntime"


FIELDS: Sequence[Field] = (
    Field("name", 'name: "m"'),
    Field("platform", 'platform: "onnxruntime_onnx"'),
    Field("backend", ""),
    Field("runtime", 'runtime: "libtriton_onnxruntime.so"'),
    Field("version_policy", "version_policy { all { } }"),
    Field("max_batch_size", ""),
    Field("input", ""),
    Field("input.format", 'input { name: "p" data_type: TYPE_FP32 dims: [3, 4, 4] format: FORMAT_NCHW }'),
    Field("input.reshape", 'input { name: "r" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }'),
    Field("input.optional", 'input { name: "o" data_type: TYPE_FP32 dims: [4] optional: true }'),
    Field("input.allow_ragged_batch", 'input { name: "g" data_type: TYPE_FP32 dims: [4] allow_ragged_batch: true }'),
    Field(
        "input.is_shape_tensor", 'input { name: "s" data_type: TYPE_INT32 dims: [1] is_shape_tensor: true }', "tensorrt"
    ),
    Field(
        "input.is_non_linear_format_io",
        'input { name: "f" data_type: TYPE_FP32 dims: [4] is_non_linear_format_io: true }',
        "tensorrt",
    ),
    Field("output", ""),
    Field("output.label_filename", 'output { name: "l" data_type: TYPE_FP32 dims: [4] label_filename: "labels.txt" }'),
    Field(
        "batch_input",
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "t" data_type: TYPE_FP32 source_input: "x" }',
    ),
    Field("batch_output", 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "y" source_input: "x" }'),
    Field("optimization.graph", "optimization { graph { level: 1 } }"),
    Field("optimization.priority", "optimization { priority: PRIORITY_MAX }"),
    Field("optimization.cuda", "optimization { cuda { graphs: true } }"),
    Field(
        "optimization.execution_accelerators",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
    ),
    Field("optimization.input_pinned_memory", "optimization { input_pinned_memory { enable: false } }"),
    Field("optimization.gather_kernel_buffer_threshold", "optimization { gather_kernel_buffer_threshold: 8 }"),
    Field("optimization.eager_batching", "optimization { eager_batching: true }"),
    Field("dynamic_batching.preferred_batch_size", "dynamic_batching { preferred_batch_size: 4 }"),
    Field("dynamic_batching.max_queue_delay_microseconds", "dynamic_batching { max_queue_delay_microseconds: 100 }"),
    Field("dynamic_batching.preserve_ordering", "dynamic_batching { preserve_ordering: true }"),
    Field("dynamic_batching.priority_levels", "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"),
    Field(
        "dynamic_batching.default_queue_policy",
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1 max_queue_size: 8 } }",
    ),
    Field(
        "dynamic_batching.priority_queue_policy",
        "dynamic_batching { priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value { } } }",
    ),
    Field("sequence_batching", "sequence_batching { max_sequence_idle_microseconds: 5000000 }"),
    Field("ensemble_scheduling", "ensemble_scheduling { }"),
    Field("instance_group.count", 'instance_group { name: "c" kind: KIND_CPU count: 2 }'),
    Field("instance_group.gpus", 'instance_group { name: "g" kind: KIND_GPU count: 1 gpus: 0 }', "pytorch"),
    Field("instance_group.kind: KIND_MODEL", 'instance_group { name: "k" kind: KIND_MODEL count: 1 }'),
    Field(
        "instance_group.rate_limiter",
        'instance_group { name: "r" kind: KIND_CPU count: 1 rate_limiter { priority: 1 } }',
    ),
    Field("instance_group.host_policy", 'instance_group { name: "h" kind: KIND_CPU count: 1 host_policy: "p" }'),
    Field("instance_group.passive", 'instance_group { name: "p" kind: KIND_CPU count: 1 passive: true }'),
    Field("default_model_filename", 'default_model_filename: "other.onnx"'),
    Field("cc_model_filenames", 'cc_model_filenames { key: "9.0" value: "hopper.onnx" }'),
    Field("metric_tags", 'metric_tags { key: "team" value: "vision" }'),
    Field("parameters", 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'),
    Field(
        "model_warmup",
        'model_warmup { name: "w" batch_size: 1 '
        'inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }',
    ),
    Field("model_operations", 'model_operations { op_library_filename: "ops.so" }'),
    Field("model_transaction_policy", "model_transaction_policy { decoupled: true }"),
    Field("model_repository_agents", 'model_repository_agents { agents { name: "checksum" } }'),
    Field("response_cache", "response_cache { enable: true }"),
    Field(
        "model_metrics",
        'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: 1 } } }',
    ),
)
"""The fields of a config; what becomes of each is what `validate` says of its example."""

BASE = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
"""
"""What all examples add to."""
BACKENDS: Sequence[tuple[str, str]] = (
    ("onnxruntime", "ONNX Runtime"),
    ("pytorch", "PyTorch: TorchScript and exported programs"),
    ("tensorrt", "TensorRT plans; not yet run by the library itself, only with a double of it"),
    ("python", "Python models"),
    ("identity", "answers what it is asked"),
    ("openvino", "OpenVINO"),
    ("tensorflow", "TensorFlow"),
    ("dali", "DALI pipelines"),
    ("fil", "forests of decision trees"),
    ("vllm", "vLLM"),
    ("tensorrtllm", "TensorRT-LLM"),
)
"""Triton's backends by the names of configs, and what they run."""
METRICS: Sequence[str] = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_inference_first_response_histogram_ms",
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
    "nv_model_load_duration_secs",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
    "nv_cache_num_hits_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_miss_duration_per_model",
    "nv_cache_hit_summary_per_model",
    "nv_cache_miss_summary_per_model",
    "nv_gpu_utilization",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_power_usage",
    "nv_gpu_power_limit",
    "nv_energy_consumption",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
)
"""Triton's families up to 26.08."""
