"""Set Django up, then run one module of this package."""

import importlib
import json
import sys

import django

from bench.inside import END, STEP


def tell(done: int, of: int) -> None:
    """Report progress to the parent process."""
    print(f"{STEP}{done} {of}", flush=True)


if __name__ == "__main__":
    django.setup()
    found = importlib.import_module(f"bench.inside.{sys.argv[1]}").main(sys.argv[2:], tell)
    print(END + json.dumps(found), flush=True)
