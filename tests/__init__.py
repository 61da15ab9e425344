"""The tests: unit, integration, end to end."""
