"""Tests without a network, one module for each module."""
