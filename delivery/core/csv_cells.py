"""CSV cells that a spreadsheet does not run as formulas."""

RISKY = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe(value: object) -> object:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe.

    (OWASP, CSV injection.)
    """
    if isinstance(value, str) and value.lstrip(" ").startswith(RISKY):
        return f"'{value}"
    return value
