"""Send many POST requests concurrently, with libcurl on an epoll, and return their outcomes.

sender = Sender(allowed=(), excerpt_bytes=4096, max_response_bytes=65536)
sender.start(call)
while sender.in_flight:
    sender.ready(sender.next_timeout())
    sender.on_timer()
    for answer in sender.take():
        ...
"""

from delivery.transport.handle import Call, Response
from delivery.transport.sender import Sender, Transport

__all__ = ["Call", "Response", "Sender", "Transport"]
