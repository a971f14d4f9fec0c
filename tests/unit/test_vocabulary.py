"""Retired names do not come back (docs/decisions/0032-standard-terms.md)."""

import ast
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
FOLDERS = ("bench", "broker_site", "channels_app", "delivery", "pipeline")
MODULES = frozenset(
    """
    accounting acting agenda allotment amend announcement asker auditor audits beginnings birth
    bring_back cells chance choosing circles clockwork deadletters firing firings giving
    guardian horizon lane lanes lean notice onsets outlook parcels parties patience places
    pulling recheck recount registered reseal reseal_answers ripe roster rounds sealed sealing
    second_look stepping_back stopping stretches surroundings taker verdict waits
    """.split()  # noqa: SIM905  (words are easier to read and to sort than literals)
)
NAMES = frozenset(
    """
    AccountingReport Acting Agenda Allotment Announcement AnswerLater Asker Asking Auditor
    BadAddress BadSetting BadValues Balance Bell Census Choice Circles Claimed Clockwork Crowd
    Directory DirectoryVersion Dispatched EarlyAck EarlyNumber Entrant Fate Fault Guardian
    Handed Heard Hold Holding Knower Known Lane LaneWaiter LeanHandler LeanRequest Leaver
    Mourner Mover Notice OfPeople Parcel Parties Party Pile Places Postpone Pruned Refusable
    Registered Roster Rounds Served Shelf Stale Stamp Standing StepForm Stepped Surrounded Taker
    Turns Veil Want Wish agenda allotment appetite asker asking bell bury circles clockwork
    crowds guardian hear hurry hush insist knock lane lane_id lanes mend mint mourner nudge
    parcel parcels patience_s patiently prolong reseal resealed ripe roster seal sealer shelf
    standings steward stragglers takers undispatched unhush veil
    """.split()  # noqa: SIM905  (words are easier to read and to sort than literals)
)
PREFIXES = ("MOST_", "LONGEST_", "FEWEST_", "DEEPEST_", "SHORTEST_")


def paths() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if "migrations" not in path.parts]


def defined(tree: ast.AST) -> set[str]:
    """Return the names of classes, functions, arguments and variables."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_modules_have_standard_names() -> None:
    found = {path.stem if path.stem != "__init__" else path.parent.name for path in paths()}
    assert found & MODULES == set()


@pytest.mark.slow("parses every module")
def test_nothing_has_a_retired_name() -> None:
    wrong = set()
    for path in paths():
        for name in defined(ast.parse(path.read_text())):
            if name in NAMES or name.lstrip("_").startswith(PREFIXES):
                wrong.add(f"{path.relative_to(ROOT)}: {name}")
    assert sorted(wrong) == []


def test_a_retired_name_is_detected() -> None:
    tree = ast.parse("class Roster:\n    def f(self, parcel): MOST_ROWS = 1")
    assert {"Roster", "parcel"} <= defined(tree) & NAMES
    assert any(name.startswith(PREFIXES) for name in defined(tree))
