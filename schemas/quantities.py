"""Quantities that people write, read into SI units: cores, bytes, seconds.

Each function takes the value found in a document and the field it stands in, and raises InvalidInput that names the
field. Negative, infinite and not-a-number values are refused everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from schemas.errors import InvalidInput

GIB = 2**30
MOST_BYTES = 2**60
"""No machine and no file that headrace meets is larger; sums of such values stay within 64 bits."""

BYTES_OF_UNIT: Mapping[str, int] = MappingProxyType(
    {"B": 1}
    | {f"{letter}{b}": 10 ** (3 * power) for power, letter in enumerate("KMGTPE", 1) for b in ("", "B")}
    | {"k": 10**3, "kB": 10**3}
    | {f"{letter}i{b}": 2 ** (10 * power) for power, letter in enumerate("KMGTPE", 1) for b in ("", "B")}
)
BITS_OF_UNIT: Mapping[str, int] = MappingProxyType({"kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12})
SECONDS_OF_UNIT: Mapping[str, float] = MappingProxyType(
    {"d": 86_400.0, "h": 3_600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 0.001}
)

CORES = "cores such as 2, 0.5 or 500m"
A_SIZE = "a size such as 4Gi, 512Mi or 8GB"
A_RATE = "a rate such as 10Gbit or 125MB"
A_DURATION = "a duration such as 90s, 2h or 1h30m"

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_AMOUNT = re.compile(rf"({_NUMBER}(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)")
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")


def parse_number(value: object, field: str) -> float:
    """A plain number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, f"must be a number, not {shown(value)}")
    return _checked(_float(value), value, field)


def parse_count(value: object, field: str) -> int:
    """A whole number, 0 or more."""
    number = parse_number(value, field)
    if number != int(number):
        raise InvalidInput(field, f"must be a whole number, not {shown(value)}")
    return int(number)


def parse_cpu(value: object, field: str) -> float:
    """Cores from `2`, `"0.5"` or `500m` (thousandths), rounded to 1/1000 core; what is not 0 is at least that."""
    number, unit = _amount(value, field, CORES)
    if unit not in ("", "m"):
        raise InvalidInput(field, f"does not know the unit '{unit}'", f"write {CORES}")
    cores = number / 1000 if unit else number
    return max(round(cores, 3), 0.001) if cores > 0 else 0.0


def parse_memory(value: object, field: str) -> int:
    """Bytes from `4Gi`, `512Mi` or `8GB`; a bare number means GiB."""
    return _bytes(value, field, bare_unit_bytes=GIB)


def parse_bytes(value: object, field: str) -> int:
    """Bytes from `4Gi`, `512Mi` or `8GB`; a bare number means bytes."""
    return _bytes(value, field, bare_unit_bytes=1)


def parse_size(value: object, field: str) -> int:
    """Bytes from `4Gi`, `512Mi` or `8GB`; a bare number other than 0 is refused, as nobody could tell its unit."""
    return _bytes(value, field, bare_unit_bytes=None)


def parse_bandwidth_bytes_per_s(value: object, field: str) -> float:
    """Bytes per second from `10Gbit`, `125MB` or `1Gi`, with or without `/s`; a bare number has no meaning."""
    text = value.strip().removesuffix("/s") if isinstance(value, str) else value
    number, unit = _amount(text, field, A_RATE)
    if unit in BITS_OF_UNIT:
        return number * BITS_OF_UNIT[unit] / 8
    return float(_in_bytes(number, unit, field, None, A_RATE))


def parse_duration_s(value: object, field: str) -> float:
    """Seconds from `90s`, `2h`, `1h30m` or `250ms`; a bare number means seconds."""
    if not isinstance(value, str) or _is_bare(value):
        return _amount(value, field, A_DURATION)[0]
    parts = _duration_parts(value.strip())
    units = [SECONDS_OF_UNIT.get(unit, math.nan) for _, unit in parts]
    if not parts or any(not larger > smaller for larger, smaller in zip(units, [*units[1:], 0.0], strict=True)):
        raise InvalidInput(field, f"must be {A_DURATION}, not {shown(value)}")
    total_s = sum(float(number) * unit_s for (number, _), unit_s in zip(parts, units, strict=True))
    return _checked(total_s, value, field)


def shown(value: object) -> str:
    """The value as a message may show it: short, whatever was handed in."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else type(value).__name__


def _bytes(value: object, field: str, bare_unit_bytes: int | None) -> int:
    number, unit = _amount(value, field, A_SIZE)
    return _in_bytes(number, unit, field, bare_unit_bytes, A_SIZE)


def _in_bytes(number: float, unit: str, field: str, bare_unit_bytes: int | None, wanted: str) -> int:
    unit_bytes = BYTES_OF_UNIT.get(unit) if unit else bare_unit_bytes
    if unit_bytes is None and (unit or number):
        problem = f"does not know the unit '{unit}'" if unit else "needs a unit"
        raise InvalidInput(field, problem, f"write {wanted}")
    size_bytes = number * (unit_bytes or 1)
    if size_bytes > MOST_BYTES:
        raise InvalidInput(field, "is more than 1 EiB", "check the unit")
    return math.ceil(size_bytes)


def _amount(value: object, field: str, wanted: str) -> tuple[float, str]:
    """The number and its unit, which is empty for a bare number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _checked(_float(value), value, field), ""
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(field, f"must be {wanted}, not {shown(value)}")
    return _checked(float(match[1]), value, field), match[2]


def _is_bare(text: str) -> bool:
    match = _AMOUNT.fullmatch(text.strip())
    return match is not None and not match[2]


def _duration_parts(text: str) -> list[tuple[str, str]]:
    """Numbers and units of `1h30m`; nothing where the text has another form."""
    parts, end = [], 0
    while match := _DURATION_PART.match(text, end):
        parts.append((match[1], match[2]))
        end = match.end()
    return parts if end == len(text) else []


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _checked(number: float, value: object, field: str) -> float:
    if not (math.isfinite(number) and number >= 0):
        raise InvalidInput(field, f"must be a number of 0 or more, not {shown(value)}")
    return number
