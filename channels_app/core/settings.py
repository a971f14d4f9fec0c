"""Declare settings: fields of a dataclass, each with its variable, default, parser and help."""

from collections.abc import Callable
from dataclasses import field
from typing import Any


def variable(
    name: str, default: Any, parse: Callable[[str], Any], help: str, *, secret: bool = False
) -> Any:
    """A field that an environment variable sets; ``parse`` raises ValueError for a bad value."""
    metadata = {"name": name, "parse": parse, "help": help, "secret": secret}
    return field(default=default, metadata=metadata)


def setting(name: str, default: Any, parse: Callable[[str], Any], help: str, **more: bool) -> Any:
    """A field that a variable of our own sets, whose name begins with HOOKSTATION."""
    return variable(f"HOOKSTATION_{name}", default, parse, help, **more)


def boolean(text: str) -> bool:
    """On or off."""
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("expected on or off")


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError("expected a whole number above 0")
    return number


def not_negative(text: str) -> int:
    """A whole number, 0 or above."""
    number = int(text)
    if number < 0:
        raise ValueError("expected a whole number, 0 or above")
    return number


def words(text: str) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(choices)}")
        return text

    return parse
