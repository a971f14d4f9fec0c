"""Secrets are compared in constant time: the time that ``==`` takes reveals matching bytes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
SECRET = re.compile(r"(?:^|_)(?:digest|hash|hmac|mac|password|secret|signature|token)s?$")
HARMLESS = {
    "record.body_digest == body_digest": "of a body that the caller sent itself",
    "_opened(consumer, row) == adoption.secret": "asked by the operator's own command line",
    "secret == MASK": "whether its owner sends the mask that everybody knows",
}
"""Comparisons that reveal no secret to a caller who could time them, and why."""


def comparisons(source: str) -> Iterator[str]:
    """Yield each ``==``, ``!=`` or ``in`` that has a secret on one side."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        # A literal in the source is not a secret.
        if any(isinstance(side, ast.Constant | ast.Set | ast.Dict) for side in sides):
            continue
        if any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops) and any(
            SECRET.search(name) for side in sides for name in names(side)
        ):
            yield ast.unparse(node)


def names(side: ast.expr) -> Iterator[str]:
    """Yield every name in an expression: variables, attributes, functions, keys."""
    for node in ast.walk(side):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # the key of a mapping


@pytest.mark.trap("timing attacks")
@pytest.mark.parametrize("app", ["broker_site", "channels_app", "delivery"])
def test_no_secret_is_compared_by_equality(app: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / app).rglob("*.py")
        for text in comparisons(path.read_text(encoding="utf-8"))
        if text not in HARMLESS
    }
    assert found == set(), "use hmac.compare_digest"


@pytest.mark.parametrize(
    "text",
    [
        "hmac.digest(k, b, 'sha256') == signature",
        "given.token != row.token",
        "a in tokens",
        "asked.get('hub.verify_token') != wanted",
        "a == setting['secret']",
    ],
)
def test_secret_comparisons_are_detected(text: str) -> None:
    assert list(comparisons(f"if {text}:\n    pass")) == [text]


def test_exempted_comparisons_still_exist() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("*_app/**/*.py")]
    assert set(HARMLESS) <= {text for source in sources for text in comparisons(source)}
