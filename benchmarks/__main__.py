"""`python -m benchmarks [NAME …]`: all that need no training packages where none is named."""

from __future__ import annotations

import argparse
import importlib

NAMES = ("decide", "ingest", "loop", "swap", "chaos", "plans")
TRAINING = ("simulate", "promotion", "replay", "lookahead", "canary")
"""Need the packages of headrace[train]."""


def main() -> None:
    """Run the benchmarks that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, *TRAINING, []], help="which")
    for name in parser.parse_args().names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
