"""Parse If-Match and If-None-Match (RFC 9110 section 13), which name the version to write to."""

import re
from dataclasses import dataclass

_ETAG = re.compile(r'\s*(?:(W/)?"([\x21\x23-\x7e]*)")\s*(?:,|\Z)')


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold for an object before it is written."""

    versions: frozenset[int] | None = None
    """The object's version is one of these; None: any version."""
    must_exist: bool = False
    must_be_new: bool = False

    def holds(self, version: int | None) -> bool:
        """Whether an object of this version (None: no object) may be written."""
        if version is None:
            return not self.must_exist
        if self.must_be_new:
            return False
        return self.versions is None or version in self.versions


ALWAYS = Precondition()


def parse(if_match: str | None, if_none_match: str | None = None) -> Precondition:
    """The precondition that the two headers express together.

    A weak tag never matches, as RFC 9110 requires for If-Match. Raises ValueError with a sentence
    that begins with the header's name.
    """
    if if_none_match is not None and if_none_match.strip() != "*":
        raise ValueError("If-None-Match may only be * on a write: create, and never replace.")
    must_be_new = if_none_match is not None
    if if_match is None:
        return Precondition(must_be_new=must_be_new)
    if if_match.strip() == "*":
        return Precondition(must_exist=True, must_be_new=must_be_new)
    return Precondition(frozenset(_versions(if_match)), must_exist=True, must_be_new=must_be_new)


def tag(version: int, state: str = "") -> str:
    """The ETag of a version and of the other state in a response.

    Writes compare only the version.
    """
    return f'"{version}.{state}"' if state else f'"{version}"'


def _versions(header: str) -> list[int]:
    versions: list[int] = []
    position = 0
    while position < max(len(header), 1):
        found = _ETAG.match(header, position)
        if found is None:
            raise ValueError('If-Match must be * or a list of ETags such as "3".')
        weak, opaque = found.groups()
        opaque = opaque.partition(".")[0]
        if weak is None and opaque.isascii() and opaque.isdecimal() and len(opaque) < 19:
            versions.append(int(opaque))
        position = found.end()
    return versions
