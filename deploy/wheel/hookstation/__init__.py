"""Hookstation, a reliable webhook broker. Its packages lie in here, so that none of their names is
taken at the top of a site-packages; the command `hookstation` is the way in.
"""

import os
import sys
from pathlib import Path

BROKER = Path(__file__).with_name("broker")


def main() -> None:
    """Run a command. What it makes at run time is in `data` below the folder it is called in."""
    sys.path.insert(0, str(BROKER))
    os.environ.setdefault("HOOKSTATION_DATA_DIR", str(Path.cwd() / "data"))

    from broker_site import commandline

    commandline.main()
