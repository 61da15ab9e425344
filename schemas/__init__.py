"""The contracts: records, their Avro schemas, topics, settings, errors."""
