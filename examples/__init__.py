"""Example workflows, and nodes to run them on."""
