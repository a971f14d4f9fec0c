"""``python -m hookstation_client.celery`` is the command ``hookstation-worker``."""

from __future__ import annotations

import sys

from hookstation_client.celery.worker import main

if __name__ == "__main__":
    sys.exit(main())
