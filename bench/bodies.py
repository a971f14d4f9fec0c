"""Messages as the load generator makes them and the sink recognises them: JSON with a number."""

SIZE = 1024
MARK = b"bench-message-"
DIGITS = 12


def body(number: int, size: int = SIZE) -> bytes:
    """A JSON object of `size` bytes that carries the number."""
    head = b'{"number":"%s%012d","filling":"' % (MARK, number)
    return head + b"x" * (size - len(head) - 2) + b'"}'


def number_in(text: bytes) -> int | None:
    """The number of the message in a request's body, whatever is around it there."""
    at = text.find(MARK)
    if at < 0:
        return None
    digits = text[at + len(MARK) : at + len(MARK) + DIGITS]
    return int(digits) if len(digits) == DIGITS and digits.isdigit() else None
