"""`--backend-config`: what it sets, what has no effect, what is refused by name."""

from __future__ import annotations

import pytest

from headrace.config.backend_config import BackendConfig, parse_backend_config
from headrace.core.errors import ConfigError


def test_nothing_set() -> None:
    assert parse_backend_config(()) == BackendConfig()
    assert BackendConfig().max_batch("onnxruntime", 4) == 4


def test_a_backends_own_before_those_for_all() -> None:
    config = parse_backend_config(
        ["default-max-batch-size=8", "onnxruntime,default-max-batch-size=3", "onnxruntime,default-max-batch-size=2"]
    )
    assert (config.max_batch("onnxruntime", 4), config.max_batch("pytorch", 4)) == (2, 8)
    assert config.remarks == ()


def test_settings_of_tensorrt() -> None:
    config = parse_backend_config(
        ["tensorrt,version-compatible=TRUE", "tensorrt,plugins=a.so;b.so", "tensorrt,execution-policy=BLOCKING"]
    )
    assert config.of("tensorrt")["version-compatible"] == "1"
    assert config.of("tensorrt")["plugins"] == "a.so;b.so"
    assert config.remarks == ("--backend-config=tensorrt,execution-policy has no effect here",)
    with pytest.raises(ConfigError, match=r"unknown setting 'plugin'; did you mean 'plugins'\?"):
        parse_backend_config(["tensorrt,plugin=a.so"])
    with pytest.raises(ConfigError, match="version-compatible must be 1, true, 0 or false, got 'yes'"):
        parse_backend_config(["tensorrt,version-compatible=yes"])


def test_what_has_no_effect() -> None:
    config = parse_backend_config(["tensorflow,version=2", "onnxruntime,intra_op_thread_count=3"])
    assert config.remarks == (
        "--backend-config=tensorflow,version=2 has no effect: backend 'tensorflow' has no settings here",
        "--backend-config=onnxruntime,intra_op_thread_count has no effect without enable-global-threadpool=1",
    )
    pool = ["onnxruntime,enable-global-threadpool=TRUE", "onnxruntime,intra_op_thread_count=3"]
    assert parse_backend_config(pool).remarks == ()
    assert parse_backend_config(pool).of("onnxruntime") == {
        "enable-global-threadpool": "1",
        "intra_op_thread_count": "3",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("onnxruntime", "expected <backend>,<key>=<value> or <key>=<value>"),
        ("onnxruntime,=3", "expected <backend>,<key>=<value>"),
        ("", "expected <backend>,<key>=<value>"),
        ("onnxruntime,default-max-batch=3", "did you mean 'default-max-batch-size'?"),
        ("onnxruntime,x=3", "unknown setting 'x'; there is default-max-batch-size, enable-global-threadpool"),
        ("onnxruntime,default-max-batch-size=-1", "must be a number within 0 and 1048576, got '-1'"),
        ("default-max-batch-size=many", "must be a number within 0 and 1048576, got 'many'"),
        ("onnxruntime,enable-global-threadpool=yes", "must be 1, true, 0 or false, got 'yes'"),
        ("onnxruntime,intra_op_thread_count=2000", "must be a number within 0 and 1024, got '2000'"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_backend_config([text])
    assert f"--backend-config={text}: " in str(refused.value)
    assert words in str(refused.value)
