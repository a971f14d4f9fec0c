"""Return how the broker starts its web server, with an application that does nothing."""

from collections.abc import Sequence

from bench.flow import Tell
from delivery.cluster import children
from delivery.cluster.children import Bind

NOTHING = "bench.nothing:application"


def main(arguments: Sequence[str], tell: Tell) -> dict[str, list[str]]:
    """``BIND``: return the command line."""
    (bind,) = arguments
    *command, _ = children.web(Bind.parse(bind)).command
    return {"command": [*command, NOTHING]}
