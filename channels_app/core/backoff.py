"""Compute how long to wait after the n-th failure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MAX_DELAY_S = 7 * 86_400.0
MAX_DELAYS = 100
SPREAD = 0.2
"""Jitter changes a delay by up to this share, so that simultaneous failures spread out."""
DEFAULT = "exponential"


@dataclass(frozen=True, slots=True)
class Steps:
    """One delay in seconds per failure; the last one repeats. Empty: never retry."""

    delays: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Exponential:
    """``base`` seconds, multiplied by ``factor`` with each failure, at most ``cap`` seconds."""

    base: float
    factor: float
    cap: float


Policy: TypeAlias = Steps | Exponential
PRESETS: dict[str, Policy] = {
    # 5 s, 50 s, 8 min, 83 min, then 14 h: 10 attempts take 71 hours. After a short outage
    # delivery resumes within seconds; a long one costs each delivery few attempts.
    "exponential": Exponential(base=5.0, factor=10.0, cap=50_400.0),
    # The schedule that Standard Webhooks recommends, 10 attempts in 75 h 35 min 5 s: after 5 s,
    # 5 and 30 minutes, then 2, 5, 10, 14, 20 and 24 hours.
    "standard": Steps(
        (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
    ),
    "fast": Steps((5.0, 30.0, 60.0, 60.0, 60.0)),
    "once": Steps(()),
}


class RetryRule(NamedTuple):
    """When a failed delivery is retried, and after how many failures it is dead."""

    policy: Policy
    max_attempts: int
    """1 if the policy never retries."""


NEVER = RetryRule(PRESETS["once"], 1)
"""Rule for a delivery whose consumer no longer exists."""


def parse_policy(value: object) -> Policy:
    """Parse a consumer's ``retry``; None means the default.

    Takes the name of a preset, a list of delays in seconds, or an object with ``base``, ``factor``
    and ``cap``. Raises ValueError with a sentence for anything else.
    """
    if value is None:
        return PRESETS[DEFAULT]
    if isinstance(value, str):
        return _preset(value)
    if isinstance(value, list | tuple):
        return _steps(value)
    if isinstance(value, dict):
        return _exponential(value)
    raise ValueError("The retry policy must be a preset's name, a list of seconds or an object.")


def resolve_rule(retry: object, max_attempts: int) -> RetryRule:
    """The rule for ``retry``, in a form that `parse_policy` takes, and ``max_attempts``."""
    policy = parse_policy(retry)
    return RetryRule(policy, allowed_attempts(policy, max_attempts))


def delay(policy: Policy, failure_count: int, jitter: float) -> float:
    """Seconds to wait after the ``failure_count``-th failure (1 is the first).

    ``jitter`` in [0, 1) varies the delay uniformly from -20 % to +20 %.
    """
    return _plain_delay(policy, max(failure_count, 1)) * (1 - SPREAD + 2 * SPREAD * jitter)


def allowed_attempts(policy: Policy, max_attempts: int) -> int:
    """Failures until a delivery is dead: ``max_attempts``, or 1 if the policy never retries."""
    return 1 if policy == PRESETS["once"] else max_attempts


def total(policy: Policy, max_attempts: int) -> float:
    """Seconds from the first attempt to the last, without jitter and the attempts' own duration."""
    failures = range(1, allowed_attempts(policy, max_attempts))
    return math.fsum(_plain_delay(policy, failure) for failure in failures)


def _preset(name: str) -> Policy:
    if name not in PRESETS:
        raise ValueError(f"There is no retry preset {name!r}; choose from {', '.join(PRESETS)}.")
    return PRESETS[name]


def _steps(values: Sequence[object]) -> Steps:
    if not 1 <= len(values) <= MAX_DELAYS:
        raise ValueError(f"A list of retry delays has 1 to {MAX_DELAYS} entries.")
    return Steps(tuple(_seconds(value, "Each retry delay") for value in values))


def _seconds(value: object, what: str) -> float:
    seconds = _number(value)
    if seconds is None or not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError(f"{what} must be a number of seconds from 0 to {MAX_DELAY_S:.0f}.")
    return seconds


def _number(value: object) -> float | None:
    # In Python True is an int, but in JSON it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _exponential(value: dict[object, object]) -> Exponential:
    if set(value) != {"base", "factor", "cap"}:
        raise ValueError("A retry object has exactly the fields base, factor and cap.")
    base, cap = _seconds(value["base"], "base"), _seconds(value["cap"], "cap")
    factor = _number(value["factor"])
    if factor is None or not 1 <= factor <= 100:
        raise ValueError("factor must be a number from 1 to 100.")
    if base > cap:
        raise ValueError("base must not be above cap.")
    return Exponential(base, factor, cap)


def _plain_delay(policy: Policy, failure_count: int) -> float:
    if isinstance(policy, Steps):
        if not policy.delays:
            return 0.0
        return policy.delays[min(failure_count, len(policy.delays)) - 1]
    try:
        return min(policy.base * policy.factor ** (failure_count - 1), policy.cap)
    except OverflowError:
        return policy.cap
