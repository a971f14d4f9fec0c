"""What a team may put into a key, case by case."""

import pytest

from channels_app.rules import grants


@pytest.mark.parametrize(
    ("scopes", "channels", "of_producer", "held", "field"),
    [
        pytest.param(["read"], [], False, [], None, id="team, all that is open"),
        pytest.param(["read"], ["open"], False, [], None, id="team, an open channel"),
        pytest.param(["read"], ["inner"], False, [["inner"]], None, id="team, what it has"),
        pytest.param(["read"], ["inner"], False, [], "channels", id="team, what it has not"),
        pytest.param(["read"], ["inner"], False, [[]], "channels", id="none granted is open ones"),
        pytest.param(["publish"], [], False, [], "scopes", id="team publishing"),
        pytest.param(["admin"], [], False, [], "scopes", id="team ruling"),
        pytest.param(["admin"], ["open"], True, [[]], "scopes", id="producer ruling"),
        pytest.param(["publish"], ["open"], True, [], None, id="producer, an open channel"),
        pytest.param(["publish"], [], True, [], "channels", id="producer, everything"),
        pytest.param(["publish"], ["inner"], True, [["open"]], "channels", id="producer, more"),
        pytest.param(["publish"], ["inner"], True, [["inner"]], None, id="producer, what it has"),
        pytest.param(["publish"], [], True, [["open"], []], None, id="producer that has all"),
    ],
)
def test_a_team_gives_no_more_than_it_has(
    scopes: list[str],
    channels: list[str],
    of_producer: bool,
    held: list[list[str]],
    field: str | None,
) -> None:
    fault = grants.excess(scopes, channels, of_producer=of_producer, external={"open"}, held=held)

    assert (fault.field if fault else None) == field
