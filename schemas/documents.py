"""YAML and JSON files that people write, read strictly.

Stricter than YAML 1.1, whose surprises end in wrong workflows: a key stands once in its mapping, only `true` and
`false` are booleans, `1:30` and `010` are texts, there are no dates, merge keys or tags of other types.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import yaml

from schemas.errors import InvalidInput
from schemas.quantities import shown

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # a PyYAML that was built without libyaml
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

MOST_BYTES_OF_TEXT = 256 * 2**20
"""Far above the largest traces; a small `.gz` can hold more than memory does."""


@contextmanager
def raising(kind: type[InvalidInput]) -> Iterator[None]:
    """Turns every InvalidInput into this kind of it, which says what sort of document was read."""
    try:
        yield
    except InvalidInput as error:
        raise kind(error.where, error.problem, error.remedy) from error


def read_text(path: Path) -> str:
    """The text of a file, decompressed where its name ends in `.gz`. Raises InvalidInput."""
    try:
        with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            content = file.read(MOST_BYTES_OF_TEXT + 1)
    except FileNotFoundError:
        raise InvalidInput(str(path), "there is no such file") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InvalidInput(str(path), f"cannot be read ({error})") from error
    if len(content) > MOST_BYTES_OF_TEXT:
        raise InvalidInput(str(path), f"is larger than {MOST_BYTES_OF_TEXT >> 20} MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), f"is no text in UTF-8 ({error})", "save it as UTF-8") from error


def parse(text: str, where: str) -> list[object]:
    """The documents in a YAML or JSON text, empty ones left out. Raises InvalidInput."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text, object_pairs_hook=_mapping)]
        except _RepeatedKey as error:
            raise InvalidInput(where, f"the key {error} stands twice in one mapping", "keep one of them") from None
        except (ValueError, RecursionError) as error:
            if where.removesuffix(".gz").endswith(".json"):
                raise InvalidInput(where, f"is no valid JSON: {error}") from error
    return _parse_yaml(text, where)


def _parse_yaml(text: str, where: str) -> list[object]:
    try:
        documents = list(yaml.load_all(text, _StrictLoader))
    except yaml.MarkedYAMLError as error:
        raise InvalidInput(where, f"is no valid YAML: {_first_line(error)}") from error
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        raise InvalidInput(where, f"is no valid YAML: {' '.join(str(error).split())}") from error
    return [document for document in documents if document is not None]


def _first_line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{error.problem or error.context or 'it cannot be parsed'}{place}"


class _RepeatedKey(Exception):
    """A key that a JSON object has twice; no ValueError, which means that the text is no JSON."""


def _mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _RepeatedKey(shown(repeated))
    return mapping


_TAG = "tag:yaml.org,2002:"
_CONSTRUCTED = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))


class _StrictLoader(_SafeLoader):
    """The YAML that the module's docstring describes."""

    # PyYAML keeps the rules of a loader in its class.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: construct for tag, construct in _SafeLoader.yaml_constructors.items() if tag is None or tag in _CONSTRUCTED
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            self._refuse_repeated_keys(node)
        # Not the safe constructor's method, which would resolve merge keys first.
        return yaml.constructor.BaseConstructor.construct_mapping(self, node, deep)

    def _refuse_repeated_keys(self, node: yaml.MappingNode) -> None:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue
            if key in seen:
                problem = f"the key {shown(key)} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)


def _resolve(name: str, pattern: str, first: Sequence[str]) -> None:
    """Plain scalars of this pattern, which begin with one of `first`, have the type of this name."""
    _StrictLoader.add_implicit_resolver(_TAG + name, re.compile(rf"(?:{pattern})\Z"), list(first))


_resolve("null", r"~|null|Null|NULL|", ("~", "n", "N", ""))
_resolve("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789")
_resolve("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+0123456789.")
_resolve("float", r"[-+]?[0-9]+[eE][-+]?[0-9]+", "-+0123456789")
_resolve("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
