"""Make the numbered JSON messages that the load generator sends and the sink recognises."""

SIZE = 1024
MARK = b"bench-message-"
DIGITS = 12


def body(number: int, size: int = SIZE) -> bytes:
    """Return a JSON object of `size` bytes that contains the number."""
    head = b'{"number":"%s%012d","filling":"' % (MARK, number)
    return head + b"x" * (size - len(head) - 2) + b'"}'


def number_in(text: bytes) -> int | None:
    """Return the number of the message in a request's body, in any envelope."""
    at = text.find(MARK)
    if at < 0:
        return None
    digits = text[at + len(MARK) : at + len(MARK) + DIGITS]
    return int(digits) if len(digits) == DIGITS and digits.isdigit() else None
