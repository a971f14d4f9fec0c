"""Write CSV cells that a spreadsheet does not run as formulas."""

RISKY = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe(value: object) -> object:
    """Return the value, with an apostrophe before text that would run as a formula.

    A spreadsheet then shows it as text (OWASP, CSV injection).
    """
    if isinstance(value, str) and value.lstrip(" ").startswith(RISKY):
        return f"'{value}"
    return value
