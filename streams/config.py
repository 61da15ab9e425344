"""All settings: from a YAML file, overridden by HEADRACE_* variables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from policy.billing import CostSettings
from policy.canary_stages import CanarySettings
from policy.decide import DecideSettings
from policy.reward import RewardWeights
from policy.simulator import SimulatorSettings
from policy.state import StateSettings
from schemas.documents import parse, raising, read_text
from schemas.errors import InvalidConfiguration
from schemas.fields import suggestion
from schemas.topics import TopicSettings
from streams.broker import BrokerSettings
from streams.cluster import ClusterSettings
from streams.kafka import KafkaSettings
from streams.policies import PolicySettings
from streams.worker import WorkerSettings

PREFIX = "HEADRACE_"
SEE_README = "see the table of settings in the README"
COMMENT = re.compile(r"(?:^|\s)#", re.MULTILINE)
"""Also a text that looks like one: better refused than lost."""
LISTS = {"node_filter_rules", "shares", "classes"}
"""Settings that are lists."""
NOT_SETTINGS = ("HEADRACE_CACHE", "HEADRACE_CONFIG", "HEADRACE_TEST_BOOTSTRAP")


class Settings(BaseSettings):
    """Every setting, by the part that it steers."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    pool: str = "default"
    """The pool that commands work on where none is named."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least that is logged."""
    kafka: KafkaSettings = pydantic.Field(default_factory=KafkaSettings)
    topics: TopicSettings = pydantic.Field(default_factory=TopicSettings)
    broker: BrokerSettings = pydantic.Field(default_factory=BrokerSettings)
    worker: WorkerSettings = pydantic.Field(default_factory=WorkerSettings)
    state: StateSettings = pydantic.Field(default_factory=StateSettings)
    decide: DecideSettings = pydantic.Field(default_factory=DecideSettings)
    policy: PolicySettings = pydantic.Field(default_factory=PolicySettings)
    reward: RewardWeights = pydantic.Field(default_factory=RewardWeights)
    cost: CostSettings = pydantic.Field(default_factory=CostSettings)
    canary: CanarySettings = pydantic.Field(default_factory=CanarySettings)
    cluster: ClusterSettings = pydantic.Field(default_factory=ClusterSettings)

    @pydantic.field_validator("policy", "canary", mode="before")
    @classmethod
    def _lists_of_a_variable(cls, part: Any) -> Any:
        """In an environment variable a list is a JSON list."""
        if not isinstance(part, dict):
            return part
        read = dict(part)
        for name in LISTS & part.keys():
            if isinstance(part[name], str):
                with suppress(ValueError):
                    read[name] = json.loads(part[name])
        return read

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment variables win over the file, which arrives as arguments."""
        return env_settings, init_settings


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this file (or of HEADRACE_CONFIG), and the environment. Raises InvalidConfiguration."""
    environment = os.environ if environment is None else environment
    if path is None and environment.get("HEADRACE_CONFIG"):
        path = Path(environment["HEADRACE_CONFIG"])
    values = _read(path) if path is not None else {}
    _check_names(values, Settings, str(path), "")
    _check_variables(environment)
    try:
        return Settings(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidConfiguration(
            name or "settings",
            f"{first['msg']} (it is {first.get('input')!r})",
            SEE_README,
        ) from error


def write_simulator(path: Path, simulator: SimulatorSettings) -> None:
    """Put these settings of the simulated cluster into a settings file; all others in it stay as they are.

    Raises InvalidConfiguration, and leaves the file alone, where it is no settings file, or more than the settings
    would be lost: comments.
    """
    values: dict[str, Any] = {}
    if path.exists():
        load(path, {})
        values = _read(path)
        if COMMENT.search(read_text(path)):
            raise InvalidConfiguration(
                str(path), "has comments, which would be lost", "name a new file, and copy its cluster.simulator"
            )
    cluster = {**(values.get("cluster") or {}), "simulator": dataclasses.asdict(simulator)}
    values = {**values, "cluster": cluster}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if parse(text, str(path)) != [values]:
        raise InvalidConfiguration(str(path), "has texts that cannot be written back", "name a new file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(str(path), f"cannot be written ({error})") from error


def _read(path: Path) -> dict[str, Any]:
    with raising(InvalidConfiguration):
        documents = parse(read_text(path), str(path))
    values = documents[0] if documents else {}
    if len(documents) > 1 or not isinstance(values, dict):
        raise InvalidConfiguration(str(path), "is no mapping of settings", SEE_README)
    return values


def _fields_of(owner: Any) -> dict[str, Any]:
    """Name -> type of the settings of one part."""
    if isinstance(owner, type) and issubclass(owner, BaseSettings):
        return {name: info.annotation for name, info in owner.model_fields.items()}
    if dataclasses.is_dataclass(owner) and isinstance(owner, type):
        return {f.name: _resolved(owner, f) for f in dataclasses.fields(owner)}
    return {}


def _resolved(owner: type, field: dataclasses.Field[Any]) -> Any:
    if not isinstance(field.type, str):
        return field.type
    return vars(sys.modules[owner.__module__]).get(field.type)


def _check_names(values: Mapping[str, Any], owner: Any, where: str, prefix: str) -> None:
    """Refuse a name that no setting has: a typing mistake must not leave a default in force."""
    known = _fields_of(owner)
    for name, value in values.items():
        if name not in known:
            raise InvalidConfiguration(
                where,
                f"there is no setting '{prefix}{name}'",
                suggestion(str(name), known),
            )
        if isinstance(value, Mapping) and _fields_of(known[name]):
            _check_names(value, known[name], where, f"{prefix}{name}.")


def _check_variables(environment: Mapping[str, str]) -> None:
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS:
            parts = variable.removeprefix(PREFIX).lower().split("__")
            nested: Any = {parts[-1]: None}
            for part in reversed(parts[:-1]):
                nested = {part: nested}
            _check_names(nested, Settings, variable, "")
