"""Cells: values as they may stand in a CSV file that somebody opens in a spreadsheet."""

RISKY = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe(value: object) -> object:
    """The value; text that a spreadsheet would run as a formula is made text by an apostrophe
    (OWASP, CSV injection)."""
    if isinstance(value, str) and value.lstrip(" ").startswith(RISKY):
        return f"'{value}"
    return value
