"""Which configs are served, and as what they come back: as the real Triton has it, whose reasons are not compared."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.http as httpclient
from typer.testing import CliRunner

from headrace.cli.main import app
from tests import models
from tests.servers import RunningServer

LABELS = "one\ntwo\nthree\nfour\n"


def tensor(side: str, name: str, more: str = "dims: 4") -> str:
    return f'{side} {{ name: "{name}" data_type: TYPE_FP32 {more} }} '


OUT = tensor("output", "OUTPUT0")
IO = tensor("input", "INPUT0") + OUT


def batching(text: str) -> str:
    return "max_batch_size: 4 dynamic_batching { " + text + " } " + IO


def source(more: str) -> str:
    return tensor("input", "INPUT0", more) + OUT


def labelled(filename: str) -> str:
    return tensor("input", "INPUT0") + tensor("output", "OUTPUT0", f'dims: 4 label_filename: "{filename}"')


def warm_up(text: str) -> str:
    return 'model_warmup { name: "w" batch_size: 1 ' + text + " } " + IO


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    reason: str = ""
    """Words of our reason not to serve it; empty where it is served."""
    oracle_differs: str = ""


CASES = [
    Case("plain", IO),
    Case("two_groups", IO + "instance_group [{ count: 2 kind: KIND_CPU }, { kind: KIND_CPU }]"),
    Case("count_0", IO + "instance_group { count: 0 kind: KIND_CPU }"),
    Case("tags", IO + 'metric_tags { key: "a" value: "b" } parameters { key: "c" value { string_value: "d" } }'),
    Case(
        "rate", IO + "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 } priority: 2 } }"
    ),
    Case("host_policy", IO + 'instance_group { kind: KIND_CPU host_policy: "cpu" }'),
    Case("batching_of_0_rows", IO + "dynamic_batching {}"),
    Case("order", batching("preserve_ordering: true")),
    Case("preferred", batching("preferred_batch_size: [2, 4] max_queue_delay_microseconds: 10")),
    Case("default_level_without_levels", batching("default_priority_level: 2")),
    Case("image", source("dims: [1, 2, 2] format: FORMAT_NCHW").replace("dims: 4", "dims: [1, 2, 2]")),
    Case("labels", labelled("labels.txt")),
    Case("some_versions", IO + "version_policy { specific { versions: [1, 7] } }"),
    Case("all_versions", IO + "version_policy { all {} }"),
    Case("three_latest", IO + "version_policy { latest { num_versions: 3 } }"),
    Case("file_of_a_capability", IO + 'cc_model_filenames { key: "9.0" value: "x" }'),
    Case("warm-up", warm_up('inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }')),
    Case("text", "max_batch_size: x " + IO, "expected an integer"),
    Case("unknown_field", "max_batchsize: 4 " + IO, "did you mean 'max_batch_size'"),
    Case("twice", "max_batch_size: 4 max_batch_size: 4 " + IO, "given twice"),
    Case("two_schedulers", "dynamic_batching {} sequence_batching {} " + IO, "given beside another"),
    Case("negative_rows", "max_batch_size: -1 " + IO, "max_batch_size must not be negative"),
    Case("other_name", 'name: "x" ' + IO, "is not the name of its directory"),
    Case("unknown_platform", 'platform: "caffe" ' + IO, "unknown platform 'caffe'"),
    Case("no_such_version", IO + "version_policy { specific { versions: 7 } }", "version_policy wants versions [7]"),
    Case("no_input_name", "input { data_type: TYPE_FP32 dims: 4 } " + OUT, "input must have a name"),
    Case("no_type", 'input { name: "INPUT0" dims: 4 } ' + OUT, "must have a data_type"),
    Case("no_dims", source(""), "must have dims"),
    Case("no_output_dims", tensor("input", "INPUT0") + tensor("output", "OUTPUT0", ""), "must have dims"),
    Case("zero_dims", source("dims: 0"), "dims must be at least 1"),
    Case("negative_dims", source("dims: -2"), "dims must be at least 1"),
    Case("format_of_one_dim", source("dims: 4 format: FORMAT_NHWC"), "needs 3 dims"),
    Case("shape_tensor", source("dims: 4 is_shape_tensor: true"), "TensorRT models only"),
    Case("vectorised", source("dims: 4 is_non_linear_format_io: true"), "TensorRT models only"),
    Case("reshape", source("dims: 4 reshape { shape: [2, 3] }"), "cannot be reshaped"),
    Case("reshape_to_0", source("dims: 4 reshape { shape: [4, 0] }"), "reshape must be at least 1"),
    Case("empty_reshape", source("dims: 1 reshape { }"), "empty reshape"),
    Case("reshape_over_a_free_extent", source("dims: [2, -1, 6] reshape { shape: [6, -1, 2] }"), "cannot be reshaped"),
    Case("preferred_over_the_maximum", batching("preferred_batch_size: 5"), "preferred_batch_size 5"),
    Case("preferred_0", batching("preferred_batch_size: 0"), "preferred_batch_size 0"),
    Case("level_of_none", batching("priority_levels: 2"), "default_priority_level must be within 1"),
    Case("level_above_all", batching("priority_levels: 2 default_priority_level: 3"), "default_priority_level"),
    Case(
        "policy_of_no_level",
        batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }"),
        "priority_queue_policy is for levels",
    ),
    Case(
        "order_of_levels",
        batching("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        "preserve_ordering and priority_levels 2",
    ),
    Case("CPU_with_gpus", IO + "instance_group { kind: KIND_CPU gpus: 0 }", "KIND_CPU has no gpus"),
    Case("model_with_gpus", IO + "instance_group { kind: KIND_MODEL gpus: 0 }", "KIND_MODEL has no gpus"),
    Case("no_GPU", IO + "instance_group { kind: KIND_GPU gpus: 99 }", "wants gpus [99]"),
    Case("profile", IO + 'instance_group { kind: KIND_CPU profile: "0" }', "TensorRT models only"),
    Case(
        "two_sources",
        IO + 'batch_input { target_name: "x" data_type: TYPE_FP32 source_input: ["INPUT0", "INPUT0"] }',
        "one source_input",
    ),
    Case(
        "unknown_source",
        IO + 'batch_input { target_name: "x" data_type: TYPE_FP32 source_input: "Q" }',
        "'Q' is no input",
    ),
    Case(
        "target_of_64_bits",
        IO + 'batch_input { target_name: "x" data_type: TYPE_INT64 source_input: "INPUT0" }',
        "TYPE_INT32 or TYPE_FP32",
    ),
    Case("unknown_target", IO + 'batch_output { target_name: "Q" source_input: "INPUT0" }', "'Q' is no output"),
    Case(
        "no_family", IO + "model_metrics { metric_control { histogram_options { buckets: 1 } } }", "must have a family"
    ),
    Case(
        "no_buckets",
        IO + 'model_metrics { metric_control { metric_identifier { family: "f" } } }',
        "must have buckets",
    ),
    Case(
        "cache_of_many_answers",
        IO + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "exclude each other",
    ),
    Case(
        "warm-up_of_another_input",
        warm_up('inputs { key: "Q" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }'),
        "inputs ['Q'] are no inputs",
    ),
    Case("warm-up_of_nothing", warm_up(""), "inputs ['INPUT0'] of the model are missing"),
    Case(
        "warm-up_of_another_type",
        warm_up('inputs { key: "INPUT0" value { data_type: TYPE_INT8 dims: 4 zero_data: true } }'),
        "data_type TYPE_INT8",
    ),
    Case(
        "warm-up_of_another_shape",
        warm_up('inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 5 zero_data: true } }'),
        "dims [5]",
    ),
    Case(
        "warm-up_without_data",
        warm_up('inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 4 } }'),
        "needs one of zero_data",
    ),
    Case("missing_labels", labelled("missing.txt"), "which cannot be read"),
    Case("no_input", OUT, "at least one input", oracle_differs="serves a model that nothing can be asked of"),
    Case("no_output", tensor("input", "INPUT0"), "at least one output", oracle_differs="serves what answers nothing"),
    Case(
        "same_input_twice",
        IO + tensor("input", "INPUT0"),
        "given twice",
        oracle_differs="the later one hides the other",
    ),
    Case(
        "type_77", source("dims: 4").replace("TYPE_FP32", "77", 1), "expected one of", oracle_differs="serves no type"
    ),
    Case(
        "negative_count",
        IO + "instance_group { count: -1 kind: KIND_CPU }",
        "count must be within 1",
        oracle_differs="takes it for 1",
    ),
    Case(
        "labels_elsewhere",
        labelled("../plain/labels.txt"),
        "outside of the model's directory",
        oracle_differs="follows it; its releases since 26.02 do not",
    ),
]
COMPARED = [case for case in CASES if not case.oracle_differs]
FILLED_BY_BACKEND = {"backend", "default_model_filename", "runtime"}


def repository(directory: Path, backend: str) -> Path:
    for case in CASES:
        of_backend = "" if "platform" in case.text else f'backend: "{backend}" '
        models.write_config(directory, case.name, of_backend + case.text)
        (directory / case.name / "labels.txt").write_text(LABELS)
    (directory / "all_versions" / "20").mkdir()
    (directory / "three_latest" / "3").mkdir()
    return directory


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    return start(repository(tmp_path_factory.mktemp("models"), "identity"))


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    directory = repository(tmp_path_factory.mktemp("models"), "identity_c")
    return start_judge(directory, "--exit-on-error=false", "--strict-readiness=false")


def index(server: RunningServer) -> dict[tuple[str, str], dict[str, str]]:
    with httpclient.InferenceServerClient(server.http) as client:
        return {(row["name"], row["version"]): row for row in client.get_model_repository_index() if "version" in row}


def ready(server: RunningServer) -> set[tuple[str, str]]:
    return {key for key, row in index(server).items() if row["state"] == "READY"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_served_and_why_not(server: RunningServer, case: Case) -> None:
    rows = [row for (name, _), row in index(server).items() if name == case.name]
    assert {row["state"] for row in rows} == {"UNAVAILABLE" if case.reason else "READY"}, rows
    assert all(case.reason in row.get("reason", "") for row in rows)


def test_check_says_what_the_server_does(server: RunningServer, tmp_path) -> None:
    outcome = CliRunner().invoke(app, ["check", str(repository(tmp_path, "identity")), "--json"])
    findings = json.loads(outcome.output)["findings"]
    assert outcome.exit_code == 1
    good = {(finding["model"], str(finding["version"])) for finding in findings if not finding["problems"]}
    assert good == ready(server)
    wrong = {finding["model"]: "; ".join(finding["problems"]) for finding in findings if finding["problems"]}
    told = {name: row["reason"] for (name, _), row in index(server).items() if row["state"] != "READY"}
    assert wrong.keys() == told.keys()
    in_text = [name for name in wrong if wrong[name] != told[name]]  # their reasons begin with the path of the file
    assert all("config.pbtxt:1:" in wrong[name] and "config.pbtxt:1:" in told[name] for name in in_text)


@pytest.mark.oracle
def test_the_same_is_served_as_by_the_real_triton(server: RunningServer, judge: RunningServer) -> None:
    names = {case.name for case in COMPARED}
    ours, theirs = ({key for key in ready(one) if key[0] in names} for one in (server, judge))
    assert ours == theirs


@pytest.mark.oracle
def test_what_differs_still_differs(server: RunningServer, judge: RunningServer) -> None:
    """Otherwise its reason is a wrong one."""
    names = {case.name for case in CASES if case.oracle_differs}
    assert names == {name for name, _ in ready(judge) ^ ready(server)}


@pytest.mark.oracle
@pytest.mark.parametrize("case", [case for case in COMPARED if not case.reason], ids=lambda case: case.name)
def test_a_config_comes_back_completed_as_by_the_real_triton(
    server: RunningServer, judge: RunningServer, case: Case
) -> None:
    ours, theirs = (config_of(one, case.name) for one in (server, judge))
    assert ours == theirs


def config_of(server: RunningServer, name: str) -> dict:
    with httpclient.InferenceServerClient(server.http) as client:
        config = client.get_model_config(name)
    return {key: value for key, value in config.items() if key not in FILLED_BY_BACKEND}


def chosen(directory: Path, backend: str) -> Path:
    """Models with and without a config of their own name, and one without any."""
    for name, custom in (("named", "big"), ("unnamed", "other")):
        models.write_config(directory, name, f'backend: "{backend}" max_batch_size: 2 {IO}')
        (directory / name / "configs").mkdir()
        text = f'backend: "{backend}" max_batch_size: 8 {IO}'
        (directory / name / "configs" / f"{custom}.pbtxt").write_text(text)
    (directory / "bare" / "1").mkdir(parents=True)
    return directory


@pytest.mark.oracle
def test_a_config_by_name_and_no_completion_as_by_the_real_triton(start, start_judge, tmp_path) -> None:
    options = ("--model-config-name=big", "--disable-auto-complete-config")
    server = start(chosen(tmp_path / "ours", "identity"), *options)
    judge = start_judge(
        chosen(tmp_path / "theirs", "identity_c"), *options, "--exit-on-error=false", "--strict-readiness=false"
    )
    assert ready(server) == ready(judge) == {("named", "1"), ("unnamed", "1")}
    for one in (server, judge):
        assert [config_of(one, name)["max_batch_size"] for name in ("named", "unnamed")] == [8, 2]
    assert "nothing completes it" in index(server)["bare", "1"]["reason"]


@pytest.fixture(scope="module")
def odd(start, tmp_path_factory) -> RunningServer:
    """Models of ONNX files, and directories that are none."""
    directory = tmp_path_factory.mktemp("odd")
    models.add_one(directory, "rows", "max_batch_size: 8")
    models.add_one(directory, "no_rows", "max_batch_size: 0")
    models.add_one(directory, "bare")
    models.add_one(directory, "nested", 'default_model_filename: "sub/net.onnx"')
    (directory / "nested" / "1" / "sub").mkdir()
    (directory / "nested" / "1" / "model.onnx").rename(directory / "nested" / "1" / "sub" / "net.onnx")
    models.add_one(directory, "folder")
    (directory / "folder" / "1" / "model.onnx").rename(directory / "folder" / "1" / "net")
    (directory / "folder" / "1" / "model.onnx").mkdir()
    (directory / "folder" / "1" / "net").rename(directory / "folder" / "1" / "model.onnx" / "model.onnx")
    models.add_one(directory, "missing", 'default_model_filename: "other.onnx"')
    models.write_config(directory, "ensemble", 'platform: "ensemble"')
    Path(os.fsdecode(os.fsencode(directory) + b"/m\xff/1")).mkdir(parents=True)
    (directory / "no_file" / "config.pbtxt").mkdir(parents=True)
    (directory / "no_file" / "1").mkdir()
    (directory / "misnamed" / "v1").mkdir(parents=True)
    (directory / "dangling").symlink_to(directory / "nowhere")
    (directory / "README").write_text("not a model")
    return start(directory, "--strict-readiness=false")


def test_what_is_written_wins_over_what_the_file_says(odd: RunningServer) -> None:
    assert config_of(odd, "rows")["max_batch_size"] == 8
    assert "dynamic_batching" not in config_of(odd, "rows")
    assert config_of(odd, "no_rows")["max_batch_size"] == 0
    assert config_of(odd, "no_rows")["input"][0]["dims"] == [-1, 4]
    assert config_of(odd, "bare")["max_batch_size"] == 4
    assert config_of(odd, "bare")["dynamic_batching"]["preferred_batch_size"] == [4]
    filled = re.search(r"model 'rows': filled in: (.*)", odd.log.read_text())
    assert filled is not None
    assert "input, output" in filled[1]
    assert "max_batch_size" not in filled[1]


def test_the_file_may_have_another_name_or_a_folder_of_its_own(odd: RunningServer) -> None:
    assert {("nested", "1"), ("folder", "1")} <= ready(odd)


def test_directories_that_are_no_models_are_told_and_cost_no_other(odd: RunningServer) -> None:
    reasons = {name: row["reason"] for (name, _), row in index(odd).items() if row["state"] != "READY"}
    words = {
        "missing": "other.onnx does not exist",
        "ensemble": "ensemble_scheduling is not served yet",
        "m\ufffd": "not UTF-8",
        "no_file": "config.pbtxt: cannot be read",
        "misnamed": "folder 'v1' is no version",
    }
    assert reasons.keys() == words.keys()
    assert [name for name, text in words.items() if text not in reasons[name]] == []
