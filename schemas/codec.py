"""Records to bytes, and bytes to records.

Written: Avro single-object encoding (0xC3 0x01, 8 bytes of fingerprint, body), or with a schema registry the
Confluent wire format (0x00, 4 bytes of schema id, body). Read: both, and JSON. Every payload thus names its writer's
schema, and is resolved from that to ours.
"""

from __future__ import annotations

import io
import json
from importlib.resources import files
from typing import Any, Protocol, TypeVar, cast

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from schemas import json_records
from schemas.conversion import from_plain, remembered, to_plain
from schemas.errors import InvalidRecord

Record = TypeVar("Record")
Plain = dict[str, Any]

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
JSON_CONTENT_TYPES = (b"application/json", b"application/vnd.kafka.json.v2+json")
RELEASED = "released"
"""The folder of every schema that a released version has written with."""


class Registry(Protocol):
    """A schema registry, as far as the codec needs one."""

    def id_of(self, topic: str, schema: str) -> int:
        """Register the schema of the topic's values, and return its id."""

    def schema_of(self, schema_id: int) -> str:
        """The schema of this id, as JSON."""


class Codec:
    """Encodes and decodes the records of all topics."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry
        self._prefixes: dict[tuple[str, type], bytes] = {}
        self._writers: dict[int, Any] = {}

    def encode(self, record: object, topic: str) -> bytes:
        """The record's bytes for this topic (full name)."""
        key = topic, type(record)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = self._prefix(topic, type(record))
        buffer = io.BytesIO()
        buffer.write(prefix)
        fastavro.schemaless_writer(buffer, schema_of(type(record)), to_plain(record))
        return buffer.getvalue()

    def decode(self, payload: bytes, record: type[Record], content_type: bytes | None = None) -> Record:
        """The record in these bytes.

        Raises InvalidRecord: empty, another format, an unknown schema, a body that does not fit it.
        """
        start = payload[:1]
        if start == b"\xc3" and payload[:2] == SINGLE_OBJECT:
            writer, body = _released(record).get(payload[2:10]), 10
            if writer is None:
                raise InvalidRecord(
                    record.__name__,
                    f"written with an unknown schema {payload[2:10].hex()}",
                    "upgrade headrace, or produce with a released schema",
                    "unknown_schema",
                )
        elif start == CONFLUENT and len(payload) >= 5:
            writer, body = self._registered(int.from_bytes(payload[1:5], "big"), record), 5
        elif start == b"{" or content_type in JSON_CONTENT_TYPES:
            return json_records.read(payload, record)
        else:
            raise InvalidRecord(
                record.__name__,
                f"neither Avro nor JSON: {len(payload)} bytes starting {payload[:8]!r}",
                "produce Avro (single-object or Confluent wire format), or JSON with the content-type application/json",
                "unknown_format",
            )
        return _read(payload, body, writer, record)

    def _prefix(self, topic: str, record: type) -> bytes:
        if self._registry is None:
            return SINGLE_OBJECT + fingerprint_of(record)
        return CONFLUENT + self._registry.id_of(topic, schema_text(record)).to_bytes(4, "big")

    def _registered(self, schema_id: int, record: type) -> Any:
        writer = self._writers.get(schema_id)
        if writer is not None:
            return writer
        if self._registry is None:
            raise InvalidRecord(
                record.__name__,
                f"written in the Confluent wire format (schema id {schema_id}), and no registry is configured",
                "set kafka.schema_registry_url",
                "no_registry",
            )
        try:
            writer = fastavro.parse_schema(json.loads(self._registry.schema_of(schema_id)))
        except (fastavro.schema.SchemaParseException, ValueError, LookupError) as error:
            raise InvalidRecord(
                record.__name__, f"schema id {schema_id}: {error}", "register its schema", "unknown_schema"
            ) from error
        self._writers[schema_id] = writer
        return writer


def _read(payload: bytes, body: int, writer: Any, record: type[Record]) -> Record:
    stream = io.BytesIO(payload)
    stream.seek(body)
    try:
        reader = schema_of(record)
        plain = fastavro.schemaless_reader(stream, writer, None if writer is reader else reader)
        value = from_plain(cast(Plain, plain), record)
    except Exception as error:  # fastavro raises whatever the bytes make it stumble over
        raise InvalidRecord(
            record.__name__, f"the Avro body does not fit its schema: {type(error).__name__}: {error}"
        ) from error
    if stream.read(1):
        raise InvalidRecord(record.__name__, "bytes are left behind the Avro body")
    return value


@remembered
def schema_text(record: type) -> str:
    """The record's schema as shipped."""
    return files("schemas").joinpath(file_name(record)).read_text(encoding="utf-8")


@remembered
def schema_of(record: type) -> Any:
    """The record's schema, parsed for fastavro."""
    return fastavro.parse_schema(json.loads(schema_text(record)))


@remembered
def fingerprint_of(record: type) -> bytes:
    """CRC-64-AVRO of the schema's canonical form, 8 bytes, little endian. Source: Avro specification."""
    return _fingerprint(json.loads(schema_text(record)))


def _fingerprint(schema: Any) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@remembered
def _released(record: type) -> dict[bytes, Any]:
    """Fingerprint -> writer's schema: ours, and those of every released version."""
    schemas: dict[bytes, Any] = {}
    stem = file_name(record).removesuffix(".avsc")
    for entry in files("schemas").joinpath(RELEASED).iterdir():
        if entry.name.startswith(stem + "."):
            schema = json.loads(entry.read_text(encoding="utf-8"))
            schemas[_fingerprint(schema)] = fastavro.parse_schema(schema)
    schemas[fingerprint_of(record)] = schema_of(record)
    return schemas


def file_name(record: type) -> str:
    """The name of the record's `.avsc` file."""
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in record.__name__)
    return f"{name.lstrip('_')}.avsc"
