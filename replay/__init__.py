"""Learning from the log, and judging by it."""
