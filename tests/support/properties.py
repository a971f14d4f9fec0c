"""How hard properties are tried: with few examples while one works, with many before one lands.

``make test`` takes the profile "few", ``make test-full`` asks for ``--hypothesis-profile=many``.
"""

from hypothesis import settings

# No deadline: a busy machine must not fail a test that is about the answer, not the time.
settings.register_profile("few", max_examples=20, deadline=None)
settings.register_profile("many", max_examples=100, deadline=None)


def examples(few: int, many: int) -> int:
    """As many as the profile of this run wants."""
    return many if settings.get_current_profile_name() == "many" else few


quick = settings(max_examples=25, deadline=None)
"""For rules whose space is small: the same in both profiles."""
