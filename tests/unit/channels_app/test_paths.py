"""JSON paths: what they find, and that no path and no document takes long to evaluate."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import json_paths

BODY = {
    "messages": [{"id": "m1"}, {"id": None}, {"id": "m2"}],
    "entry": [{"changes": [{"v": [1, 2]}, {}]}, {"changes": [{"v": [3]}]}],
    "with-dash": {"a": 7},
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab") | st.text(), inner),
    max_leaves=30,
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("messages[0].id", ["m1"]),
        ("messages[*].id", ["m1", "m2"]),
        ("messages[9].id", []),
        ("entry[*].changes[*].v[*]", [1, 2, 3]),
        ("entry[*].changes[*].v", [1, 2, 3]),
        ('"with-dash".a', [7]),
        ("nothing.here[*].at.all", []),
        ("[*].id", []),
    ],
)
def test_valid_paths_find_values(path: str, found: list[object]) -> None:
    assert json_paths.check(path) is None
    assert list(json_paths.values_at(path, BODY)) == found


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "a.", "a..b", "a b", "0", "a[", "a[-1]", "a[12345]", "a\n", "@"),
        *(
            *("a[]", "a[::2]", "a[?b]", "a.*", "a|b", "a.[b,c]", "length(a)", "`1`", "'a'"),
            '"a\\u0041"',
        ),
    ],
)
def test_invalid_paths_are_refused(path: str) -> None:
    assert json_paths.check(path)


@pytest.mark.slow("draws many bodies")
@given(path=st.from_regex(json_paths.PATTERN, fullmatch=True), value=ANY_JSON)
def test_every_path_applies_to_every_body(path: str, value: object) -> None:
    if json_paths.check(path) is None and len(path) <= json_paths.MAX_LENGTH:
        assert None not in list(json_paths.values_at(path, value))


@pytest.mark.slow("evaluates the worst paths on the largest body")
def test_the_longest_path_and_a_large_body_take_no_time() -> None:
    deep = json.loads("[" * 60 + "[" + ",".join(["1"] * 500_000) + "]" + "]" * 60)
    wide = [[0] * 1000 for _ in range(1000)]
    for path, value in (
        ("[*]" * 66, deep),
        ("[*][*]", wide),
        ("a" + "[*]" * 60 + ".a" * 9, {"a": deep}),
    ):
        began = time.process_time()
        list(json_paths.values_at(path, value))
        # Seconds of CPU time. The full JSONPath language took 45.
        assert time.process_time() - began < 15, path
