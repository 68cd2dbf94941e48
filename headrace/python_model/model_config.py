"""`ModelConfig` of `pb_utils`: what `auto_complete_config` fills in. What the owner gave stays, or is an error."""

from __future__ import annotations

from typing import Any

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_PROPERTIES = {"input": ("name", "data_type", "dims", "optional"), "output": ("name", "data_type", "dims")}


class ModelConfig:
    """A model's config that is being completed.

    Every method raises `ValueError` naming the model where it contradicts what the owner's config says.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """The config with the names of config.pbtxt."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets it, unless the owner allows more than the model."""
        given = self._config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(f"{self._who()} has max_batch_size {given}, but the model takes {max_batch_size} at most")
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Has requests share batches."""
        other = next((name for name in _SCHEDULERS if name in self._config), None)
        if other is not None:
            raise ValueError(f"{self._who()} has scheduling_choice '{other}', but the model wants 'dynamic_batching'")
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, properties: dict[str, Any]) -> None:
        """Adds an input, or completes the one of this name."""
        self._add("input", properties)

    def add_output(self, properties: dict[str, Any]) -> None:
        """Adds an output, or completes the one of this name."""
        self._add("output", properties)

    def set_model_transaction_policy(self, policy: dict[str, Any]) -> None:
        """Says whether the model is decoupled."""
        if set(policy) != {"decoupled"}:
            raise ValueError(
                f"{self._who()}: a transaction policy has 'decoupled' and nothing else, got {sorted(policy)}"
            )
        given = self._config.get("model_transaction_policy", {}).get("decoupled")
        if given is not None and given != policy["decoupled"]:
            wanted = policy["decoupled"]
            raise ValueError(f"{self._who()} has decoupled {given}, but the model wants {wanted}")
        self._config["model_transaction_policy"] = dict(policy)

    def _add(self, side: str, properties: dict[str, Any]) -> None:
        known = _PROPERTIES[side]
        where = f"{self._who()}, {side} '{properties.get('name', '')}'"
        if unknown := sorted(set(properties) - set(known)):
            raise ValueError(f"{where} has {unknown}; expected {', '.join(known)}")
        if missing := [name for name in ("name", "data_type", "dims") if name not in properties]:
            raise ValueError(f"{where} is missing '{missing[0]}'")
        given = next((row for row in self._config[side] if row["name"] == properties["name"]), None)
        if given is None:
            self._config[side].append(dict(properties))
        else:
            self._complete(given, properties, where)

    def _complete(self, given: dict[str, Any], properties: dict[str, Any], where: str) -> None:
        data_type, dims = properties["data_type"], list(properties["dims"])
        if given["data_type"] not in ("TYPE_INVALID", data_type):
            raise ValueError(f"{where} has data_type {given['data_type']} in the config, but the model has {data_type}")
        if given["dims"] and list(given["dims"]) != dims:
            raise ValueError(f"{where} has dims {list(given['dims'])} in the config, but the model has {dims}")
        optional = properties.get("optional", given.get("optional", False))
        if given.get("optional") and not optional:
            raise ValueError(f"{where} is optional in the config, but the model needs it")
        given.update(data_type=data_type, dims=dims)
        if optional:
            given["optional"] = True

    def _who(self) -> str:
        return f"the config of model '{self._config['name']}'"
