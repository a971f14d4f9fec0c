"""Advice exists for every way in which a delivery can end."""

import pytest

from delivery.core.outcome import Outcome
from delivery.models import DeadCluster
from pipeline.core.triage import _UNKNOWN, AdviceKind, advice


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_own(outcome: Outcome) -> None:
    assert advice(outcome.value, None) is not _UNKNOWN


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        ("timeout", None, AdviceKind.REPLAY),
        ("throttled", 429, AdviceKind.REPLAY),
        ("server_error", 500, AdviceKind.REPLAY),
        ("unavailable", 503, AdviceKind.REPLAY),
        ("client_error", 422, AdviceKind.FIX),
        ("client_error", 401, AdviceKind.CONFIGURE),
        ("client_error", 408, AdviceKind.REPLAY),
        ("gone", 410, AdviceKind.NEVER),
        ("tls_error", None, AdviceKind.CONFIGURE),
        ("dns_error", None, AdviceKind.CONFIGURE),
        ("body_unreadable", None, AdviceKind.BROKER),
        ("", None, AdviceKind.FIX),
    ],
)
def test_it_says_who_has_to_act(outcome: str, status: int | None, kind: AdviceKind) -> None:
    assert advice(outcome, status).kind is kind


def test_the_console_knows_every_kind() -> None:
    assert set(AdviceKind) == set(DeadCluster.Kind.values)
