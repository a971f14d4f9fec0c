"""What a team may put into a key, case by case."""

import pytest

from channels_app.rules import grants
from channels_app.rules.grants import Held

INNER = Held(["read", "register"], ["inner"])
PUBLISHES = Held(["publish"], ["inner"])


@pytest.mark.parametrize(
    ("scopes", "channels", "held", "field"),
    [
        pytest.param(["read"], [], [], None, id="all that is open"),
        pytest.param(["read"], ["inner"], [INNER], None, id="what it has"),
        pytest.param(["read", "register"], ["inner"], [INNER], None, id="both that it has"),
        pytest.param(["read"], ["inner"], [], "channels", id="a channel that it has not"),
        pytest.param(["read"], ["inner"], [Held(["read"], [])], "channels", id="none is open ones"),
        pytest.param(["replay"], ["inner"], [INNER], "channels", id="a scope that it has not"),
        pytest.param(
            ["read", "replay"],
            ["inner", "outer"],
            [INNER, Held(["read", "replay"], ["outer"])],
            "channels",
            id="a scope of one key with the channel of another",
        ),
        pytest.param(
            ["read"], ["inner", "outer"], [INNER, Held(["read"], ["outer"])], None, id="of two keys"
        ),
        pytest.param(
            ["read"], ["inner"], [Held(["admin"], ["inner"])], "channels", id="of a ruler"
        ),
        pytest.param(["publish"], [], [], "scopes", id="publishing"),
        pytest.param(["admin"], [], [], "scopes", id="ruling"),
    ],
)
def test_a_team_gives_itself_no_more_than_it_has(
    scopes: list[str], channels: list[str], held: list[Held], field: str | None
) -> None:
    fault = grants.excess(scopes, channels, of_producer=False, held=held)

    assert (fault.field if fault else None) == field


@pytest.mark.parametrize(
    ("scopes", "channels", "held", "field"),
    [
        pytest.param(["publish"], ["inner"], [PUBLISHES], None, id="what it has"),
        pytest.param(["publish"], ["inner"], [Held(["publish"], [])], None, id="one of all"),
        pytest.param(["publish"], [], [PUBLISHES, Held(["publish"], [])], None, id="all of all"),
        pytest.param(["publish"], [], [PUBLISHES], "channels", id="all of one"),
        pytest.param(["publish"], [], [Held(["read"], [])], "channels", id="all, but to read"),
        pytest.param(["publish"], [], [], "channels", id="all of nothing"),
        pytest.param(["publish"], ["open"], [PUBLISHES], "channels", id="another"),
        pytest.param(["publish"], ["inner"], [INNER], "channels", id="one that it only reads"),
        pytest.param(["publish"], ["open"], [Held(["admin"], [])], "channels", id="of a ruler"),
        pytest.param(["admin"], ["inner"], [Held(["admin"], [])], "scopes", id="ruling"),
        *[
            pytest.param([scope], ["inner"], [Held([scope], [])], "scopes", id=scope)
            for scope in grants.TEAM_SCOPES
        ],
    ],
)
def test_a_team_gives_its_producer_no_more_than_it_has(
    scopes: list[str], channels: list[str], held: list[Held], field: str | None
) -> None:
    fault = grants.excess(scopes, channels, of_producer=True, held=held)

    assert (fault.field if fault else None) == field
