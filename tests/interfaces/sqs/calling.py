"""Call the SQS API, and moto, in this process: from the signed request to the response."""

import re
from io import StringIO
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from django.core.management import call_command
from django.test import RequestFactory
from moto.core.botocore_stubber import BotocoreStubber, MockRawResponse

from broker_site.server import wsgi
from tests.support import door
from tests.support.door import REGION


class Door(NamedTuple):
    """The SQS API and the key pair of a client."""

    access_key_id: str
    secret_access_key: str
    url: str = "http://testserver"

    @classmethod
    def of(cls, *arguments: str) -> Self:
        """Create a key with these arguments of the command."""
        out = StringIO()
        call_command("create_api_key", *arguments, "--sigv4", stdout=out, stderr=StringIO())
        made = dict(re.findall(r"^(AWS_\w+)=(.*)$", out.getvalue(), re.MULTILINE))
        return cls(made["AWS_ACCESS_KEY_ID"], made["AWS_SECRET_ACCESS_KEY"])

    def client(self) -> Any:
        """Return a boto3 client whose requests the broker's WSGI application answers."""
        return _client(self, answer)


def moto_client() -> Any:
    """Return a boto3 client whose requests moto answers, without patching other clients."""
    stubber = BotocoreStubber()
    stubber.enabled = True
    return _client(Door("testing", "testing", f"https://sqs.{REGION}.amazonaws.com"), stubber)


def answer(
    request: AWSPreparedRequest, environment: dict[str, Any] | None = None, **_: Any
) -> AWSResponse:
    """Return the broker's response. Also a handler of botocore's ``before-send``.

    ``environment`` has WSGI variables that replace those of the request.
    """
    address = urlsplit(request.url)
    headers = {
        name: value.decode() if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }
    body = request.body or b""
    environ = (
        RequestFactory()
        .generic(
            request.method,
            request.url,
            body,
            headers=headers | {"Host": address.netloc, "Content-Length": str(len(body))},
        )
        .environ
    ) | (environment or {})
    started: list[tuple[str, list[tuple[str, str]]]] = []
    content = wsgi.application(environ, lambda *given: started.append(given))
    ((status, sent),) = started
    raw = MockRawResponse(b"".join(content))
    return AWSResponse(request.url, int(status.split()[0]), dict(sent), raw)


def _client(of: Door, handler: Any) -> Any:
    made = door.client(
        {
            "AWS_ENDPOINT_URL_SQS": of.url,
            "AWS_ACCESS_KEY_ID": of.access_key_id,
            "AWS_SECRET_ACCESS_KEY": of.secret_access_key,
            "AWS_DEFAULT_REGION": REGION,
        }
    )
    made.meta.events.register_first("before-send.sqs", handler)
    return made
