"""Sequence numbers: what happens to a number, depending on the numbers received before it."""

import random

import pytest

from channels_app.core.sequence import Decision, Turn, decide, sequence_id


@pytest.mark.seed("S2-65")
@pytest.mark.parametrize(
    ("number", "options", "decision"),
    [
        (5, {}, Decision(Turn.GOES, 6)),
        (4, {}, Decision(Turn.PASSED, 5)),
        (4, {"is_over": True}, Decision(Turn.PASSED, 5)),
        (7, {}, Decision(Turn.EARLY, 5)),
        (7, {"is_over": True}, Decision(Turn.GOES, 8, 2)),
        (7, {"is_over": True, "lower": 6}, Decision(Turn.EARLY, 6, 1)),
        (7, {"is_over": True, "lower": 5}, Decision(Turn.EARLY, 5)),
        (0, {}, Decision(Turn.GOES, 1)),
        (0, {"is_over": True}, Decision(Turn.GOES, 1)),
    ],
)
def test_each_number_is_stored_waits_or_is_refused(
    number: int, options: dict[str, int], decision: Decision
) -> None:
    lower = options.pop("lower", None)
    assert decide(number, 5, lower=lower, is_over=bool(options)) == decision


def test_numbers_are_stored_in_order_whatever_their_arrival() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        waiting, expected, gone = list(range(1, 20)), 1, []
        while waiting:
            number = chance.choice(waiting)
            turn, expected, skipped = decide(number, expected, lower=None)
            assert not skipped
            if turn is Turn.GOES:
                gone.append(number)
                waiting.remove(number)
        assert gone == sorted(gone)


def test_sequences_are_independent() -> None:
    ids = {sequence_id(*one) for one in [(1, 1, "a"), (1, 2, "a"), (2, 1, "a"), (1, None, "a")]}
    assert len(ids) == 4
    assert sequence_id(1, 1, "a") == sequence_id(1, 1, "a") > 0
