"""`python -m benchmarks [decide|ingest|loop|chaos …]`: without a name, all that need no more than some minutes."""

from __future__ import annotations

import argparse
import importlib

QUICK = ("decide", "ingest", "loop")
NAMES = (*QUICK, "chaos")


def main() -> None:
    """Run the benchmarks that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help=f"which; default: {', '.join(QUICK)}")
    for name in parser.parse_args().names or QUICK:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
