"""List every URL of the site from the URLconf."""

from collections.abc import Iterator, Sequence

from django.urls import URLPattern, URLResolver, get_resolver


def routes(under: str = "/") -> Iterator[tuple[str, URLPattern]]:
    """Yield path and pattern of each URL below ``under``; parameters as ``<str:name>``."""
    for path, pattern in _walk(get_resolver().url_patterns, "/"):
        if path.startswith(under):
            yield path, pattern


def _walk(
    patterns: Sequence[URLPattern | URLResolver], prefix: str
) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, path)
        else:
            yield path, pattern
