"""``python -m hookstation``."""

from hookstation import main

main()
