"""Replace the resolver in the broker's processes: a file lists the test names that resolve."""

import os
import socket
from pathlib import Path
from typing import Any

_real = socket.getaddrinfo


def _look_up(host: Any, *rest: Any, **options: Any) -> Any:
    if not str(host).endswith(".test"):
        return _real(host, *rest, **options)
    if host not in Path(os.environ["NAMES_THAT_LEAD_HERE"]).read_text().split():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _real("127.0.0.1", *rest, **options)


socket.getaddrinfo = _look_up
