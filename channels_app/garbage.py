"""Exempt objects loaded at start from garbage collection."""

import gc


def freeze_loaded_objects() -> None:
    """Call once, when a process has loaded everything and before it works or forks.

    Modules, models and addresses are about a hundred thousand objects that live as long as the
    process. A full collection that visits them stops the process for a tenth of a second. It also
    writes to their memory pages, which forked processes then no longer share.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
