"""From a model's directory to a checked spec: what loading and `headrace check` have in common.

A problem is told together with all others that do not follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.backend.base import Model, ModelFile
from headrace.backend.engines import find_engine, why_not_on_gpus
from headrace.backend.python import PythonModel
from headrace.config.complete import (
    DEFAULT_MAX_BATCH,
    check_name,
    complete_backend,
    complete_defaults,
    complete_from_signature,
    is_auto,
)
from headrace.config.labels import label_remarks, read_labels
from headrace.config.model import ModelSignature, ModelSpec, model_spec
from headrace.config.pbtxt import ConfigRules, GivenConfig, read_config
from headrace.config.validate import validate
from headrace.core.errors import ConfigError, told_together
from headrace.core.messages import ModelConfig
from headrace.observe.logs import Log
from headrace.repository.scan import FoundModel
from headrace.repository.versions import choose_versions, missing_versions


@dataclass(frozen=True)
class Prepared:
    """A version of a model that can be started."""

    spec: ModelSpec
    model: Model
    remarks: tuple[str, ...]
    """Sentences on what is accepted and not used, or looks like a mistake, and on what the file can do."""
    completed: tuple[str, ...]
    """Fields of the config that were filled in."""


@dataclass(frozen=True)
class Survey:
    """What is known of a model before one of its versions is opened."""

    given: GivenConfig
    versions: list[int]
    """Those to serve, ascending."""
    remarks: tuple[str, ...]


def survey(found: FoundModel, rules: ConfigRules) -> Survey:
    """Reads the config and chooses the versions.

    Raises:
        ConfigError: with every problem.
        OSError: when the directory cannot be read.
    """
    if found.name != found.directory.name:
        raise ConfigError("the name of its directory is not UTF-8, so that no client can ask for it")
    present = found.versions()
    remarks = [f"folder '{name}' is no version; versions are numbers such as 1" for name in found.misnamed_versions()]
    with told_together() as part:
        if not present:
            with part():
                raise ConfigError("; ".join(["there is no version directory, expected one such as '1'", *remarks]))
        given = read_config(found.chosen_config(rules.name))
        if given.path is None and not rules.auto_complete:
            raise ConfigError("there is no config.pbtxt, and nothing completes it (--disable-auto-complete-config)")
        versions = choose_versions(given.message.version_policy, present) if present else []
    missing = missing_versions(given.message.version_policy, present)
    remarks += [f"version_policy names version {version}, which has no directory" for version in missing]
    return Survey(given, versions, tuple(remarks))


def prepare(
    found: FoundModel, version: int, given: GivenConfig, gpus: Sequence[str], rules: ConfigRules, log: Log
) -> Prepared:
    """Opens the model file, completes the config and checks it.

    Args:
        found: the model's directory.
        version: which of its versions.
        given: its config, as written.
        gpus: names of the GPUs that there are.
        log: where a Python model's words go that completes its config.
        rules: whether the model file completes the config, or is only compared with it.

    Raises:
        ConfigError: with every problem.
        Exception: whatever an engine raises when it opens a file that it cannot read.
    """
    model: Model | None = None
    remarks: list[str] = []
    labels: dict[str, tuple[str, ...]] = {}
    with told_together() as part:
        with part():
            check_name(given, found.name)
        config = complete_backend(given, found.name, found.files(version))
        with part():
            model = _open(found, version, config, rules)
            if isinstance(model, PythonModel) and rules.auto_complete:
                model.complete(config, log)
        with part():
            if model is not None and model.signature is not None:
                _apply_signature(config, model.signature, given, rules)
        why_not = why_not_on_gpus(config)
        if why_not and gpus and is_auto(config):
            remarks.append(f"instances are on the CPU, although there is a GPU: {why_not}")
        complete_defaults(config, len(gpus), not why_not)
        with part():
            if model is not None or (config.input and config.output):
                remarks += validate(config, gpus, model.signature if model is not None else None)
        with part():
            labels = read_labels(config, found.directory)
    assert model is not None, "a model that cannot be opened is an error"
    spec = model_spec(config, labels)
    told = model.signature.remarks if model.signature is not None else ()
    return Prepared(spec, model, (*told, *remarks, *label_remarks(spec.outputs)), _filled_in(given.message, config))


def _open(found: FoundModel, version: int, config: Any, rules: ConfigRules) -> Model:
    load = find_engine(config.backend)
    directory = found.directory / str(version)
    return load(ModelFile(directory, config.default_model_filename, rules.backends.of(config.backend)))


def _apply_signature(config: Any, signature: ModelSignature, given: GivenConfig, rules: ConfigRules) -> None:
    if rules.auto_complete:
        default = rules.backends.max_batch(config.backend, DEFAULT_MAX_BATCH)
        complete_from_signature(config, signature, given.sets_max_batch_size, default)
        return
    compared = ModelConfig()
    compared.CopyFrom(config)
    complete_from_signature(compared, signature, sets_max_batch_size=True)


def _filled_in(given: Any, completed: Any) -> tuple[str, ...]:
    before = {field.name: value for field, value in given.ListFields()}
    return tuple(field.name for field, value in completed.ListFields() if before.get(field.name) != value)
