"""The codec's schema registry: confluent-kafka's own client."""

from __future__ import annotations

from schemas.codec import Codec
from schemas.errors import BrokerError, InvalidConfiguration
from streams.kafka import KafkaSettings


class ConfluentRegistry:
    """Registers and looks up schemas by the subject `<topic>-value`."""

    def __init__(self, url: str) -> None:
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
        except ImportError as error:
            raise InvalidConfiguration(
                "kafka.schema_registry_url", f"needs more packages: {error}", "install headrace[registry]"
            ) from error
        self._schema_class = Schema
        self._client = SchemaRegistryClient({"url": url})
        self._url = url

    def id_of(self, topic: str, schema: str) -> int:
        """Register the schema of the topic's values, and return its id. Raises BrokerError."""
        try:
            return int(self._client.register_schema(f"{topic}-value", self._schema_class(schema, "AVRO")))
        except Exception as error:  # the client raises what its HTTP library raises
            raise BrokerError(f"the schema registry at {self._url} cannot register {topic}-value: {error}") from error

    def schema_of(self, schema_id: int) -> str:
        """The schema of this id, as JSON. Raises LookupError."""
        try:
            return str(self._client.get_schema(schema_id).schema_str)
        except Exception as error:
            raise LookupError(f"the schema registry at {self._url} has no schema {schema_id}: {error}") from error


def codec_for(kafka: KafkaSettings) -> Codec:
    """The codec that these settings ask for."""
    return Codec(ConfluentRegistry(kafka.schema_registry_url) if kafka.schema_registry_url else None)
