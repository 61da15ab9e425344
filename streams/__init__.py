"""Serving on Kafka: the agents and everything around them that touches a broker."""
