"""Normalize HTML, so that equivalent pages compare as equal."""

from html.parser import HTMLParser

_EMPTY = {"br", "hr", "img", "input", "link", "meta"}


def parts(text: str) -> list[str]:
    """Return tags and words in order, with attributes, classes and white space in one form."""
    reader = _Reader()
    reader.feed(text)
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        plain = [(name, (value or "").split()) for name, value in attrs]
        told = [(name, sorted(value) if name == "class" else value) for name, value in plain]
        self.found.append(f"<{tag} {sorted(told)}>")

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY:
            self.found.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.found.append(text)
