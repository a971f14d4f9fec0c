"""The program's name: texts say each command as the people of this installation type it.

In the code a command is written ``manage.py migrate`` or ``python -m pipeline usage``. Every text
that is shown goes through ``typed``: in a checkout it says ``python manage.py migrate``, where the
package is installed ``hookstation migrate`` and ``hookstation pipeline usage``.
"""

import re

CHECKOUT = "python manage.py"
_MANAGE = re.compile(r"(?:python )?\bmanage\.py\b")
_PIPELINE = re.compile(r"\bpython -m pipeline\b")
_name = CHECKOUT


def use(name: str) -> None:
    """Say from now on that the program is started by this name. Settings do, once."""
    global _name
    _name = name


def name() -> str:
    """What people type in front of a command's name."""
    return _name


def typed(text: str) -> str:
    """The text with each command as people type it here."""
    found = _MANAGE.sub(lambda _: _name, text)
    return found if _name == CHECKOUT else _PIPELINE.sub(lambda _: f"{_name} pipeline", found)
