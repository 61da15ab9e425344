"""Learning offline: files in, files out."""
