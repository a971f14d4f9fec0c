"""Parse a declaration: a TOML file of teams, channels and what is registered on them."""

import difflib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channels_app.serializers.channels import ChannelSerializer
from channels_app.serializers.consumers import ConsumerSerializer
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.producers import ProducerSerializer
from channels_app.serializers.schedules import ScheduleSerializer
from channels_app.serializers.teams import TeamSerializer

JSON_TEXTS = {"event_types": ("schema", "example")}
"""Fields that may be JSON text, because TOML has no convenient form for them."""


@dataclass(frozen=True, slots=True)
class EntryTable:
    """One kind of entry."""

    name: str
    noun: str
    keys: tuple[str, ...]
    """Fields that identify an entry."""
    fields: Collection[str]
    extras: tuple[str, ...] = ()
    """Fields of the file that the API lacks."""


TABLES = (
    EntryTable("teams", "team", ("slug",), TeamSerializer.settings()),
    EntryTable("channels", "channel", ("slug",), ChannelSerializer.settings()),
    EntryTable("event_types", "event type", ("channel", "name"), EventTypeSerializer.settings()),
    EntryTable("producers", "producer", ("slug",), ProducerSerializer.settings()),
    EntryTable(
        "consumers",
        "consumer",
        ("channel", "client_id"),
        ConsumerSerializer.settings(),
        ("secret", "secret_file"),
    ),
    EntryTable("schedules", "schedule", ("channel", "name"), ScheduleSerializer.settings()),
)
"""In the order of application: entries come after those that they refer to."""
BY_NAME = {table.name: table for table in TABLES}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in the file and its place."""

    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the file; ``values`` are the arguments of the registering step."""

    table: EntryTable
    number: int
    """Number within its table, from 1."""
    key: tuple[str, ...]
    values: dict[str, Any]
    secret: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The entry's name, ``orders/billing``."""
        return "/".join(self.key)

    def place(self, field: str = "") -> str:
        """The place for messages: ``consumers 2 (orders/billing), timeout_ms``."""
        return _place(self.table.name, self.number, self.name, field)


@dataclass(slots=True)
class Declaration:
    """The entries and problems of a file."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse(text: str, folder: Path) -> Declaration:
    """Parse a file's text; ``secret_file`` paths are relative to ``folder``.

    Never raises: ``problems`` lists all errors of structure, and the steps check the values
    themselves.
    """
    declaration = Declaration()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        declaration.problems.append(Problem("The file is not TOML", str(error)))
        return declaration
    for name in document:
        if name not in BY_NAME:
            detail = f"There is no such table{_instead(name, BY_NAME)}"
            declaration.problems.append(Problem(name, detail))
    seen: set[tuple[str, ...]] = set()
    for table in TABLES:
        rows = document.get(table.name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            detail = f"Write each {table.noun} as an entry of its own, under [[{table.name}]]."
            declaration.problems.append(Problem(table.name, detail))
            continue
        for number, row in enumerate(rows, start=1):
            _read(declaration, table, number, row, folder, seen)
    return declaration


def _place(table: str, number: int, name: str, field: str = "") -> str:
    place = f"{table} {number} ({name})" if name.strip("/") else f"{table} {number}"
    return f"{place}, {field}" if field else place


def _instead(name: str, choices: Iterable[str]) -> str:
    options = list(choices)
    if near := difflib.get_close_matches(name, options, n=1):
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(options)}."


def _read(
    declaration: Declaration,
    table: EntryTable,
    number: int,
    row: dict[str, Any],
    folder: Path,
    seen: set[tuple[str, ...]],
) -> None:
    key = tuple(row.get(name, "") for name in table.keys)
    name = "/".join(str(part) for part in key)
    faults = [
        (part, "Text is needed here." if part in row else "This field is required.")
        for part in table.keys
        if not (isinstance(row.get(part), str) and row[part])
    ]
    faults += [
        (unknown, f"There is no such field{_instead(unknown, _field_names(table))}")
        for unknown in row
        if unknown not in _field_names(table)
    ]
    is_second = not faults and (table.name, *key) in seen
    if is_second:
        faults.append(("", f"This {table.noun} is declared above already."))
    seen.add((table.name, *key))
    values = {part: value for part, value in row.items() if part in table.fields}
    for part in JSON_TEXTS.get(table.name, ()):
        if isinstance(values.get(part), str):
            try:
                values[part] = json.loads(values[part])
            except ValueError as error:
                faults.append((part, f"This text is not JSON: {error}."))
                values.pop(part)
    secret = _secret(row, folder, faults) if table.extras else ""
    declaration.problems += [
        Problem(_place(table.name, number, name, part), detail) for part, detail in faults
    ]
    if not is_second and all(isinstance(part, str) and part for part in key):
        declaration.entries.append(Entry(table, number, key, values, secret))


def _field_names(table: EntryTable) -> tuple[str, ...]:
    return (*table.keys, *table.fields, *table.extras)


def _secret(row: Mapping[str, Any], folder: Path, faults: list[tuple[str, str]]) -> str:
    """Return the given signing secret, or '' if the broker is to generate one."""
    given = [name for name in ("secret", "secret_file") if name in row]
    if len(given) == 2:
        faults.append(("secret_file", "Give either secret or secret_file, not both."))
    if len(given) != 1:
        return ""
    value = row[given[0]]
    if not isinstance(value, str) or not value:
        faults.append((given[0], "Text is needed here."))
        return ""
    if given[0] == "secret":
        return value
    try:
        return (folder / value).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        faults.append(("secret_file", f"{folder / value} cannot be read: {reason}."))
        return ""
