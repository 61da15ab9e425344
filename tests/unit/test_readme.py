"""The README names what there is, and nothing that is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from policy.heuristics import HEURISTICS
from schemas.topics import CATALOGUE
from streams.config import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def names(owner: object, prefix: str = "") -> list[str]:
    found = []
    defaults = Settings() if owner is Settings else owner
    fields = Settings.model_fields if owner is Settings else [f.name for f in dataclasses.fields(owner)]
    for name in fields:
        value = getattr(defaults, name)
        found += names(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else [prefix + name]
    return found


@pytest.mark.parametrize("name", names(Settings))
def test_every_setting_is_in_the_table(name):
    last = name.rsplit(".", 1)[-1]

    assert f"`{name}`" in README or f"`.{last}`" in README


def test_every_policy_and_topic_is_named():
    missing = [name for name in (*HEURISTICS, *(t.name for t in CATALOGUE)) if f"`{name}`" not in README]

    assert not missing


def test_every_file_it_links_to_is_there():
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", README)

    assert [path for path in linked if not (ROOT / path).exists()] == []
