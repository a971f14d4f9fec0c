"""Bodies are parsed into the types that handlers are annotated with."""

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest
from hookstation_client.bodies import parser_for


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line]
    price: float
    size: Size | None = None
    at: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)


class OrderModel(pydantic.BaseModel):
    id: int


def test_dataclass_is_built_with_all_that_it_holds() -> None:
    body = (
        b'{"id": 7, "lines": [{"article": "tea"}, {"article": "cup", "count": 2}], "price": 3,'
        b' "size": "l", "at": "2026-11-25T17:00:00Z", "labels": {"a": "b"}, "new": true}'
    )

    assert parser_for(Order)(body) == Order(
        7,
        [Line("tea"), Line("cup", 2)],
        3.0,
        Size.LARGE,
        datetime(2026, 11, 25, 17, tzinfo=UTC),
        {"a": "b"},
    )


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "Expecting"),
        (b"[]", "needs a JSON object"),
        (b'{"lines": [], "price": 1}', "id"),
        (b'{"id": "7", "lines": [], "price": 1}', "id: '7' is not of type int"),
        (b'{"id": true, "lines": [], "price": 1}', "id: True is not of type int"),
        (
            b'{"id": 7, "lines": [{"article": 1}], "price": 1}',
            "lines: article: 1 is not of type str",
        ),
        (b'{"id": 7, "lines": [], "price": 1, "size": "xl"}', "size: 'xl' is of none of"),
        (b"\xff", "decode"),
    ],
)
def test_an_invalid_dataclass_body_names_the_field(body: bytes, detail: str) -> None:
    with pytest.raises(ValueError, match=detail):
        parser_for(Order)(body)


def test_pydantic_model_validates_by_itself() -> None:
    assert parser_for(OrderModel)(b'{"id": 7}').id == 7
    with pytest.raises(ValueError, match="valid integer"):
        parser_for(OrderModel)(b'{"id": "x"}')


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bytes, b"[1]"),
        (str, "[1]"),
        (list[int], [1]),
        (Any, [1]),
    ],
)
def test_plain_types_need_no_model(kind: Any, value: Any) -> None:
    assert parser_for(kind)(b"[1]") == value


def test_an_unsupported_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'complex'"):
        parser_for(complex)
