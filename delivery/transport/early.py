"""Remember which receivers answer large requests before they have read them.

Such a receiver closes with a part of the body unread, so its kernel sends a reset. That discards an
answer that has not left yet: over TLS often, since Nagle's algorithm holds it back until the
session tickets are acknowledged. Nothing is left to read here. The next large body therefore waits
until the receiver asks for it or answers (``Expect: 100-continue``, RFC 9110 10.1.1), which costs
a round trip, or a second if the receiver does not know that header.
"""

from delivery.core.outcome import Outcome
from delivery.transport.handle import Call, Handle, Response

LARGE_BODY = 16 * 1024
"""Bytes up to which a body is never held back: they mostly arrive with the headers."""
_MAX_URLS = 1000


class EarlyAnswers:
    """URLs whose last large request broke, or was answered before its body was sent."""

    def __init__(self) -> None:
        self._urls = set[str]()

    def awaits(self, call: Call) -> bool:
        """Whether a call's body waits for an early answer."""
        return len(call.body) > LARGE_BODY and call.url in self._urls

    def learn(self, handle: Handle, answer: Response) -> None:
        """Note how a call with a large body has ended.

        If waiting did not help, the next call does without: the header itself may be the cause.
        """
        if answer.outcome.is_success or answer.outcome is Outcome.THROTTLED:
            is_early = not handle.has_sent_all
        else:
            is_early = answer.outcome is Outcome.CONNECTION_RESET and not handle.expects
        if not is_early:
            self._urls.discard(handle.call.url)
            return
        if len(self._urls) >= _MAX_URLS:
            self._urls.clear()
        self._urls.add(handle.call.url)
