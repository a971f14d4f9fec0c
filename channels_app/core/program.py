"""Write commands in texts the way in which the people of this installation type them.

The code writes a command as ``manage.py migrate`` or ``python -m pipeline usage``. Every text that
is displayed passes through ``typed``: it shows ``python manage.py migrate`` in a checkout, and
``hookstation migrate`` and ``hookstation pipeline usage`` for an installed package.
"""

import re

CHECKOUT = "python manage.py"
_MANAGE = re.compile(r"(?:python )?\bmanage\.py\b")
_PIPELINE = re.compile(r"\bpython -m pipeline\b")
_name = CHECKOUT


def use(name: str) -> None:
    """Set the name by which the program is started. The settings call this once."""
    global _name
    _name = name


def name() -> str:
    """What people type before a command's name."""
    return _name


def typed(text: str) -> str:
    """The text with each command as people of this installation type it."""
    text = _MANAGE.sub(lambda _: _name, text)
    return text if _name == CHECKOUT else _PIPELINE.sub(lambda _: f"{_name} pipeline", text)
