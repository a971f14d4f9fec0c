"""Grants: which rights a team may give to an API key."""

from datetime import UTC, datetime, timedelta

import pytest

from channels_app.core import access
from channels_app.core.access import KeyRights

INNER = KeyRights(["read", "register"], ["inner"])
PUBLISHES = KeyRights(["publish"], ["inner"])
SOON, LATE = (datetime(2030, month, 1, tzinfo=UTC) for month in (1, 2))


@pytest.mark.parametrize(
    ("scopes", "channels", "held", "field"),
    [
        pytest.param(["read"], [], [], None, id="all that is open"),
        pytest.param(["read"], ["inner"], [INNER], None, id="what it has"),
        pytest.param(["read", "register"], ["inner"], [INNER], None, id="both that it has"),
        pytest.param(["read"], ["inner"], [], "channels", id="a channel that it has not"),
        pytest.param(
            ["read"], ["inner"], [KeyRights(["read"], [])], "channels", id="none is open ones"
        ),
        pytest.param(["replay"], ["inner"], [INNER], "channels", id="a scope that it has not"),
        pytest.param(
            ["read", "replay"],
            ["inner", "outer"],
            [INNER, KeyRights(["read", "replay"], ["outer"])],
            "channels",
            id="a scope of one key with the channel of another",
        ),
        pytest.param(
            ["read"],
            ["inner", "outer"],
            [INNER, KeyRights(["read"], ["outer"])],
            None,
            id="of two keys",
        ),
        pytest.param(
            ["read"], ["inner"], [KeyRights(["admin"], ["inner"])], "channels", id="of a ruler"
        ),
        pytest.param(["publish"], [], [], "scopes", id="publishing"),
        pytest.param(["admin"], [], [], "scopes", id="ruling"),
    ],
)
def test_a_team_cannot_grant_itself_more_than_it_has(
    scopes: list[str], channels: list[str], held: list[KeyRights], field: str | None
) -> None:
    fault = access.excess(scopes, channels, of_producer=False, held=held)

    assert (fault.field if fault else None) == field


@pytest.mark.parametrize(
    ("scopes", "channels", "held", "field"),
    [
        pytest.param(["publish"], ["inner"], [PUBLISHES], None, id="what it has"),
        pytest.param(["publish"], ["inner"], [KeyRights(["publish"], [])], None, id="one of all"),
        pytest.param(
            ["publish"], [], [PUBLISHES, KeyRights(["publish"], [])], None, id="all of all"
        ),
        pytest.param(["publish"], [], [PUBLISHES], "channels", id="all of one"),
        pytest.param(["publish"], [], [KeyRights(["read"], [])], "channels", id="all, but to read"),
        pytest.param(["publish"], [], [], "channels", id="all of nothing"),
        pytest.param(["publish"], ["open"], [PUBLISHES], "channels", id="another"),
        pytest.param(["publish"], ["inner"], [INNER], "channels", id="one that it only reads"),
        pytest.param(
            ["publish"], ["open"], [KeyRights(["admin"], [])], "channels", id="of a ruler"
        ),
        pytest.param(["admin"], ["inner"], [KeyRights(["admin"], [])], "scopes", id="ruling"),
        *[
            pytest.param([scope], ["inner"], [KeyRights([scope], [])], "scopes", id=scope)
            for scope in access.TEAM_SCOPES
        ],
    ],
)
def test_a_team_cannot_grant_its_producer_more_than_it_has(
    scopes: list[str], channels: list[str], held: list[KeyRights], field: str | None
) -> None:
    fault = access.excess(scopes, channels, of_producer=True, held=held)

    assert (fault.field if fault else None) == field


@pytest.mark.parametrize(
    ("channels", "held", "end"),
    [
        pytest.param(["a"], [KeyRights(["publish"], ["a"], SOON)], SOON, id="with the only one"),
        pytest.param(["a"], [KeyRights(["publish"], ["a"])], None, id="never"),
        pytest.param(
            ["a"],
            [KeyRights(["publish"], ["a"], at) for at in (LATE, SOON)],
            LATE,
            id="with the last",
        ),
        pytest.param(
            ["a"],
            [KeyRights(["publish"], ["a"], SOON), KeyRights(["publish"], [])],
            None,
            id="one for all",
        ),
        pytest.param(["a"], [KeyRights(["publish"], [], SOON)], SOON, id="one for all that ends"),
        pytest.param([], [KeyRights(["publish"], [], SOON)], SOON, id="all with all"),
        pytest.param(
            ["a", "b"],
            [KeyRights(["publish"], ["b"], SOON), KeyRights(["publish"], ["a"], LATE)],
            SOON,
            id="with the first right that ends",
        ),
        pytest.param(
            ["a"],
            [KeyRights(["publish"], ["a"], LATE), KeyRights(["read"], ["a"])],
            LATE,
            id="no other use",
        ),
    ],
)
def test_a_grant_lasts_as_long_as_its_keys(
    channels: list[str], held: list[KeyRights], end: datetime | None
) -> None:
    assert access.end(["publish"], channels, of_producer=True, held=held) == end


def test_grants_for_public_channels_have_no_end() -> None:
    assert (
        access.end(["read"], [], of_producer=False, held=[KeyRights(["read"], ["a"], SOON)]) is None
    )


@pytest.mark.parametrize(
    ("scopes", "channels", "of_producer", "sentence"),
    [
        (["publish"], [], False, "A key of a team cannot have the scope publish here."),
        (["read"], [], True, "A key of a producer cannot have the scope read here."),
        (["publish"], [], True, "Name the channels that the key may use."),
        (
            ["replay"],
            ["inner"],
            False,
            "No working key of the same owner may replay on inner. Ask an operator for one.",
        ),
    ],
)
def test_an_excessive_request_names_the_excess_and_a_remedy(
    scopes: list[str], channels: list[str], of_producer: bool, sentence: str
) -> None:
    fault = access.excess(scopes, channels, of_producer=of_producer, held=[INNER, PUBLISHES])

    assert fault is not None
    assert fault.detail == sentence


@pytest.mark.parametrize(
    ("scopes", "held", "names"),
    [
        pytest.param(["publish"], [PUBLISHES], ["inner"], id="all that it has"),
        pytest.param(
            ["publish"],
            [PUBLISHES, KeyRights(["publish"], ["a"])],
            ["a", "inner"],
            id="of two keys",
        ),
        pytest.param(["publish"], [INNER], [], id="none that it may publish on"),
        pytest.param(
            ["publish"], [KeyRights(["publish"], [])], [], id="no name where all are allowed"
        ),
        pytest.param(
            ["publish"], [KeyRights(["publish"], []), PUBLISHES], [], id="one key of two has all"
        ),
        pytest.param(
            ["publish", "read"],
            [KeyRights(["publish"], ["a", "b"]), KeyRights(["read"], ["b", "c"])],
            ["b"],
            id="only where each scope is allowed",
        ),
    ],
)
def test_every_names_the_channels_of_a_producer(
    scopes: list[str], held: list[KeyRights], names: list[str]
) -> None:
    assert access.every(scopes, of_producer=True, held=held) == names


def test_every_names_nothing_for_a_team() -> None:
    assert access.every(["read"], of_producer=False, held=[INNER]) == []


DAY = timedelta(days=1)
TODAY = datetime(2026, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spans", "days"),
    [
        ([], 0),
        ([(3, None)], 3),
        ([(9, None), (3, None)], 9),
        # A period that ends when the next one begins leaves no gap; one that ends earlier does.
        ([(9, 5), (5, None)], 9),
        ([(9, 6), (5, None)], 5),
        ([(9, 4), (7, 6), (5, None)], 9),
        # The order of the periods does not matter.
        ([(5, None), (9, 5)], 9),
        # A period that has ended gives nothing; one that begins later gives nothing yet.
        ([(9, 1)], 0),
        ([(3, 0)], 3),
        ([(3, -2)], 3),
        ([(0, None)], 0),
        ([(-1, None)], 0),
        ([(3, None), (-1, None)], 3),
        ([(9, 8), (7, 2)], 0),
        ([(3, None), (3, 2)], 3),
    ],
)
def test_a_grant_counts_from_its_last_uninterrupted_start(
    spans: list[tuple[int, int | None]], days: int
) -> None:
    """All periods are in days before today."""
    held = [
        (TODAY - begin * DAY, None if end is None else TODAY - end * DAY) for begin, end in spans
    ]
    assert access.since(held, TODAY) == TODAY - days * DAY
