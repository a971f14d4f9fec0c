"""Describe a consumer's status as one word and one colour, the same on every page."""

from typing import NamedTuple


class ConsumerStatus(NamedTuple):
    """The status as a label shows it."""

    word: str
    tone: str
    """good, bad, wait or calm."""
    code: str
    """The API's value: one of `CODES`."""


CODES = ("healthy", "unsteady", "failing", "untried", "paused", "disabled", "retired")


def of(
    state: str,
    *,
    is_pull: bool,
    is_open: bool = False,
    is_failing: bool = False,
    ever_succeeded: bool = False,
    ever_failed: bool = False,
) -> ConsumerStatus:
    """The status of a consumer.

    ``state`` is Consumer.State. ``is_open``: its circuit is open. ``is_failing``: its last attempt
    failed. A consumer that has never succeeded is not shown as healthy, even if its circuit is
    closed.
    """
    if state != "active":
        return ConsumerStatus(state, "bad" if state == "disabled" else "wait", state)
    if is_open or (ever_failed and not ever_succeeded):
        return ConsumerStatus("failing", "bad", "failing")
    if is_failing:
        return ConsumerStatus("unsteady", "wait", "unsteady")
    if not ever_succeeded:
        return ConsumerStatus(f"nothing {'received' if is_pull else 'sent'} yet", "calm", "untried")
    return ConsumerStatus("healthy", "good", "healthy")
