"""The cluster's tasks."""

from pathlib import Path


def send_letter(number: int, outbox: str) -> None:
    """Write a letter into a folder. A repeated task changes nothing."""
    Path(outbox, f"{number}.txt").write_text(f"Dear customer {number}, your order is packed.\n")
