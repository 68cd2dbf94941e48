"""`headrace check` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from headrace.cli.main import app
from tests import models


def run(*arguments: object) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return outcome.exit_code, outcome.output


def findings(*arguments: object) -> tuple[int, dict[str, dict]]:
    code, output = run(*arguments, "--json")
    report = json.loads(output)
    assert report["ok"] is (code == 0)
    return code, {finding["model"]: finding for finding in report["findings"]}


def test_a_good_repository(tmp_path) -> None:
    models.add_one(tmp_path, "bare")
    models.identity(tmp_path, "echo", "FP32", [4], extra='runtime: "r"')
    code, found = findings(tmp_path)
    assert code == 0
    assert found["bare"]["problems"] == found["bare"]["remarks"] == []
    assert {"max_batch_size", "input", "output", "dynamic_batching", "backend"} <= set(found["bare"]["completed"])
    assert found["echo"]["remarks"] == ["runtime is accepted and has no effect here"]
    assert (found["echo"]["version"], "max_batch_size" in found["echo"]["completed"]) == (1, False)


def test_all_problems_of_all_models_at_once(tmp_path) -> None:
    models.identity(tmp_path, "good", "FP32", [4])
    models.write_config(tmp_path, "text", "max_batch_size: x\ninput { dimz: 3 }")
    models.write_config(tmp_path, "rules", 'backend: "identity"\nmax_batch_size: -1\ninput { name: "x" dims: 0 }')
    (tmp_path / "empty" / "v1").mkdir(parents=True)
    models.add_one(
        tmp_path,
        "file",
        'name: "fiel" max_batch_size: 2 input { name: "INPUT0" data_type: TYPE_INT8 dims: 5 } '
        'output { name: "q" } output { name: "OUTPUT0" label_filename: "missing" }',
    )
    code, found = findings(tmp_path)
    assert code == 1
    assert found["good"]["problems"] == []
    assert [problem.rpartition("config.pbtxt:")[2] for problem in found["text"]["problems"]] == [
        "1:17: max_batch_size: expected an integer, got x",
        "2:9: ModelInput has no field 'dimz'; did you mean 'dims'?",
    ]
    assert found["rules"]["problems"] == [
        "max_batch_size must not be negative, got -1",
        "input 'x' must have a data_type",
        "input 'x' dims must be at least 1, or -1 for any extent, got [0]",
        "model must have at least one output",
    ]
    assert found["empty"]["problems"] == [
        "there is no version directory, expected one such as '1'; "
        "folder 'v1' is no version; versions are numbers such as 1"
    ]
    problems = found["file"]["problems"]
    expected = [
        "name 'fiel' is not the name of its directory, 'file'",
        "input 'INPUT0' has data_type TYPE_INT8 in the config, but TYPE_FP32 in the model file",
        "input 'INPUT0' has dims [5] in the config, but [4] in the model file",
        "output 'q' is not in the model file",
        "output 'q' must have a data_type",
        "output 'OUTPUT0' has label_filename 'missing', which cannot be read",
    ]
    assert [words for words in expected if not any(words in problem for problem in problems)] == []


def test_the_table_for_people(tmp_path) -> None:
    models.identity(tmp_path, "good", "FP32", [4])
    models.write_config(tmp_path, "bad[x]", "name: [y]")
    code, output = run(tmp_path)
    assert code == 1
    assert "1 problem in 2 models." in output
    for words in ("good", "bad[x]", "1 wrong", "config.pbtxt:1:", "filled in: name"):
        assert words in output
    assert run(tmp_path / "good")[0] == 1, "a model's directory is no repository: '1' is no model"


def test_repositories_that_cannot_be_read(tmp_path) -> None:
    for repository in ("a", "b"):
        models.identity(tmp_path / repository, "same", "FP32", [4])
    code, found = findings(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert code == 1
    assert len(found[""]["problems"]) == 2
    assert "'same' is in two repositories" in found[""]["problems"][0]
    assert f"{tmp_path}/c is not a directory" in found[""]["problems"][1]
    (tmp_path / "d").mkdir()
    assert run(tmp_path / "d") == (0, "No models in the repository.\n0 problems in 0 models.\n")
    assert run()[0] == 2


def test_what_an_engine_raises_is_a_problem(tmp_path) -> None:
    (tmp_path / "noise" / "1").mkdir(parents=True)
    (tmp_path / "noise" / "1" / "model.onnx").write_bytes(b"no model")
    (tmp_path / "none" / "1").mkdir(parents=True)
    code, found = findings(tmp_path)
    assert code == 1
    assert "ONNX Runtime cannot load it" in found["noise"]["problems"][0]
    assert "must specify 'platform' or 'backend'" in found["none"]["problems"][0]


def test_gpus_of_another_machine(tmp_path) -> None:
    models.write_config(
        tmp_path,
        "m",
        'backend: "simulated" instance_group { kind: KIND_GPU gpus: [1] }' + models.io_config("FP32", [4], 2, ""),
    )
    assert "wants gpus [1]; this server has none" in findings(tmp_path, "--gpus=0")[1]["m"]["problems"][0]
    assert findings(tmp_path, "--gpus=2")[0] == 0


def test_every_version_that_is_served(tmp_path) -> None:
    models.identity(tmp_path, "m", "FP32", [4], extra="version_policy { specific { versions: [1, 2, 9] } }")
    for folder in ("2", "3", "02"):
        (tmp_path / "m" / folder).mkdir()
    report = json.loads(run(tmp_path, "--json")[1])
    assert [finding["version"] for finding in report["findings"]] == [1, 2]
    assert report["findings"][0]["remarks"] == [
        "folder '02' is no version; versions are numbers such as 1",
        "version_policy names version 9, which has no directory",
    ]


def test_without_completion(tmp_path) -> None:
    whole = 'backend: "onnxruntime" max_batch_size: 2 ' + models.io_config("FP32", [4], 2, "").partition("\n")[2]
    models.add_one(tmp_path, "whole", whole)
    models.add_one(tmp_path, "part", whole.partition("output")[0])
    models.add_one(tmp_path, "whole_shapes", whole.replace("max_batch_size: 2", ""))
    models.add_one(tmp_path, "none")
    code, found = findings(tmp_path, "--disable-auto-complete-config")
    assert code == 1
    assert found["whole"]["problems"] == []
    assert found["part"]["problems"] == ["model must have at least one output"]
    assert found["none"]["problems"] == [
        "there is no config.pbtxt, and nothing completes it (--disable-auto-complete-config)"
    ]
    assert "dims [4] in the config, but [-1, 4] in the model file" in found["whole_shapes"]["problems"][0]


def test_another_config_of_the_models_that_have_it(tmp_path) -> None:
    for name in ("both", "one"):
        models.identity(tmp_path, name, "FP32", [4])
    (tmp_path / "both" / "configs").mkdir()
    (tmp_path / "both" / "configs" / "big.pbtxt").write_text("max_batch_size: x")
    assert findings(tmp_path)[0] == 0
    code, found = findings(tmp_path, "--model-config-name=big")
    assert code == 1
    assert found["one"]["problems"] == []
    assert "configs/big.pbtxt:1:17: max_batch_size" in found["both"]["problems"][0]


def test_nothing_is_written(tmp_path) -> None:
    models.identity(tmp_path, "m", "FP32", [4])
    models.add_one(tmp_path, "n")

    def everything() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}

    before = everything()
    run(tmp_path)
    assert everything() == before
