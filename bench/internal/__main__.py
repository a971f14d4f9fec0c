"""Set Django up, then call one function of this package (see `bench.internal.run`)."""

import importlib
import json
import sys

import django

from bench.internal import END, STEP


def progress(done: int, total: int) -> None:
    print(f"{STEP}{done} {total}", flush=True)


if __name__ == "__main__":
    django.setup()
    module, _, function = sys.argv[1].partition(".")
    call = getattr(importlib.import_module(f"bench.internal.{module}"), function)
    print(END + json.dumps(call(progress, **json.loads(sys.argv[2]))), flush=True)
