"""Advice exists for every way in which a delivery can end."""

import pytest

from delivery.core.outcome import Outcome
from delivery.models import DeadCluster
from pipeline.core.triage import _UNKNOWN, Kind, advice


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_own(outcome: Outcome) -> None:
    assert advice(outcome.value, None) is not _UNKNOWN


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        ("timeout", None, Kind.REPLAY),
        ("throttled", 429, Kind.REPLAY),
        ("server_error", 500, Kind.REPLAY),
        ("unavailable", 503, Kind.REPLAY),
        ("client_error", 422, Kind.FIX),
        ("client_error", 401, Kind.CONFIGURE),
        ("client_error", 408, Kind.REPLAY),
        ("gone", 410, Kind.NEVER),
        ("tls_error", None, Kind.CONFIGURE),
        ("dns_error", None, Kind.CONFIGURE),
        ("body_unreadable", None, Kind.BROKER),
        ("", None, Kind.FIX),
    ],
)
def test_it_says_who_has_to_act(outcome: str, status: int | None, kind: Kind) -> None:
    assert advice(outcome, status).kind is kind


def test_the_console_knows_every_kind() -> None:
    assert set(Kind) == set(DeadCluster.Kind.values)
