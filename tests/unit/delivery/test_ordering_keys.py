"""Ordering keys: the number that a key has on every host, and the order of acceptance."""

from channels_app.core.ids import TIME_SHIFT
from delivery.core.ordering import acceptance, key_number


def test_lane_id_is_the_same_in_every_process_and_release() -> None:
    # Rows store these numbers. A different number would let messages of a key overtake each other.
    assert key_number(1, "room-7") == 8902978990840542665
    assert key_number(17, "room-7") == 7773271652147706615


def test_lane_id_fits_a_signed_column_and_tells_keys_and_consumers_apart() -> None:
    found = {key_number(consumer, f"key-{number}") for consumer in (1, 2) for number in range(1000)}

    assert len(found) == 2000
    assert all(0 <= one < 2**63 for one in found)


def test_acceptance_sorts_by_millisecond_then_instant_then_number() -> None:
    earlier, later = "2026-01-01T00:00:00.000100Z", "2026-01-01T00:00:00.000200Z"
    wanted = [
        (5 << TIME_SHIFT | 9, later),
        (6 << TIME_SHIFT | 8, earlier),
        (6 << TIME_SHIFT | 1, later),
        (6 << TIME_SHIFT | 2, later),
    ]

    assert sorted(reversed(wanted), key=lambda message: acceptance(*message)) == wanted
