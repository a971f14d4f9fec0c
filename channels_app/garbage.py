"""Garbage: what is loaded at the start is not looked at by each full collection for ever after."""

import gc


def freeze_loaded_objects() -> None:
    """Call once, when a process has loaded everything and before it works or forks.

    Modules, models and addresses are a hundred thousand objects that live as long as the process.
    A full collection goes through all of them, and nothing else happens for a tenth of a second:
    no delivery and no answer. Forks share the memory of what no collection touches.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
