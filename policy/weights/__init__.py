"""The weights that headrace ships."""
