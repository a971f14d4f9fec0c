"""`python -m tests.bullmq CHECKOUT [FILE...]`; tools/bullmq calls it."""

import sys
from pathlib import Path

import django

django.setup()

from tests.bullmq.suite import main  # noqa: E402 - its modules read Django's settings

sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
