"""The reference of the Python client is generated from its signatures and docstrings.

``make golden`` rewrites docs/clients/python-api.md.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

import hookstation_client
from hookstation_client import client, receiving
from hookstation_client import django as outbox

PAGE = Path(__file__).resolve().parents[3] / "docs" / "clients" / "python-api.md"
HEAD = """\
# Reference of the Python client

Every public name of `hookstation_client`, generated from signatures and docstrings. The
[guide](python.md) shows how to use them together, [Celery](celery.md) lists the supported parts of
Celery, and the [API](../api.md) describes fields and errors. Durations are in seconds, instants are
aware datetimes.

`AsyncHookstation`, `AsyncDelivery`, `AsyncBuffer` and `AsyncWorker` have the same methods as the
classes here without `Async`: await their calls, and iterate over lists with `async for`.
"""
TWINS = ("AsyncBuffer", "AsyncDelivery", "AsyncHookstation", "AsyncWorker")
WIDTH = 88
"""Width at which a signature is broken into lines."""


def test_reference_is_up_to_date(file_regression: Any) -> None:
    file_regression.check(page(), fullpath=PAGE)


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [HEAD]
    for module in (hookstation_client, receiving, outbox):
        parts += [f"## {module.__name__}\n", *names_of(module)]
    return "\n".join(parts)


def names_of(module: ModuleType) -> Iterator[str]:
    """Yield the entries of a module's public names, errors last."""
    if module is hookstation_client:
        found = {name: getattr(module, name) for name in module.__all__ if name not in TWINS}
        found["Schedules"] = client.Schedules
    else:
        # A name that two modules export is documented where it is defined.
        found = {
            name: getattr(module, name)
            for name in module.__all__
            if name not in hookstation_client.__all__
        }
    for name, value in sorted(found.items(), key=lambda item: (is_error(item[1]), item[0])):
        yield from entry(name, value)


def is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield the section of a class with its methods and fields, or of a function."""
    yield f"### {name}\n"
    if not isinstance(value, type):
        yield from described(name, value)
        return
    if is_error(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"A kind of `{bases}`.\n"
    else:
        if "__init__" in vars(value) or issubclass(value, tuple):  # else users do not construct it
            yield signature_of(name, value)
    if text := documentation(value):
        yield text + "\n"
    for member, function in members(value):
        yield from described(f"{name}.{member}", function)


def members(kind: type) -> list[tuple[str, Any]]:
    """Return public methods and properties, inherited ones included, in source order."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("hookstation_client"):
            continue
        found |= {
            name: value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            for name, value in vars(base).items()
            if not name.startswith("_") and (callable(value) or isinstance(value, property))
        }
    return [(name, value) for name, value in found.items() if inspect.getdoc(value)]


def described(name: str, value: Any) -> Iterator[str]:
    yield f"`{name}`\n" if isinstance(value, property) else signature_of(name, value)
    if text := documentation(value.fget if isinstance(value, property) else value):
        yield text + "\n"


def signature_of(name: str, value: Any) -> str:
    """Return a call as written in Python; a long one has one parameter on each line."""
    signature = inspect.signature(value)
    shown = [p for p in signature.parameters.values() if p.name not in ("self", "cls", "_cls")]
    parameters, keywords = [], False
    for parameter in shown:
        if parameter.kind is parameter.VAR_POSITIONAL:
            keywords = True
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parameters.append("*")
            keywords = True
        parameters.append(plain(parameter))
    result = signature.return_annotation
    bare = isinstance(value, type) or result is inspect.Signature.empty
    returns = "" if bare else f" -> {annotation(result)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){returns}"
    awaited = "await " if inspect.iscoroutinefunction(value) else ""
    return f"```python\n{awaited}{line}\n```\n"


def plain(parameter: inspect.Parameter) -> str:
    """Return a parameter with its annotation as written; ``str`` would put it into quotes."""
    kinds: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    stars = kinds.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        made = repr(parameter.default) == "<factory>"  # the default factory of a dataclass field
        text += " = ..." if made else f" = {parameter.default!r}"
    return text


def annotation(value: Any) -> str:
    """Return an annotation as it is written in the source."""
    return value.__forward_arg__ if isinstance(value, ForwardRef) else str(value)


def documentation(value: Any) -> str:
    """Return the docstring as Markdown, with double backquotes turned into single ones."""
    text = inspect.getdoc(value) or "" if value is not None else ""
    if isinstance(value, type) and value.__doc__ is None:
        return ""
    # Requirement ids are meant for readers of the code.
    text = re.sub(r" \([SX]\d-\d+(?:, [SX]\d-\d+)*\)", "", text)
    return text.replace("``", "`").strip()
