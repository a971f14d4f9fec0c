"""The generated curl command, run in a shell, sends exactly the same request."""

import shutil
import subprocess

import pytest

from channels_app.core import http
from tests.support.receiver import Receiver

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"a": "b"}', id="json"),
        pytest.param(b"it's $(touch ran) `touch ran`\nnext line\n", id="a shell's own letters"),
        pytest.param("für 5 €".encode(), id="utf-8"),
        pytest.param(b"@/etc/passwd", id="a file's name to curl"),
        pytest.param(bytes(range(256)), id="binary"),
        pytest.param("\ufffd".encode(), id="the sign for what could not be read"),
        pytest.param(b"\r\n\t", id="control characters"),
        pytest.param(b"", id="empty"),
    ],
)
def test_the_curl_command_sends_the_same_bytes(
    receiver: Receiver, tmp_path: object, body: bytes
) -> None:
    headers = [("webhook-id", "msg_1"), ("X-Note", 'it\'s "fine" $HOME')]
    line = http.line(receiver.url("/hook?a=[1]&b={2}&c='x'"), headers, body)

    subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, cwd=str(tmp_path))

    (request,) = receiver.wait_for(1)
    assert request.body == body
    assert request.method == "POST"
    assert request.target == "/hook?a=[1]&b={2}&c='x'"
    assert request.header("webhook-id") == "msg_1"
    assert request.header("x-note") == 'it\'s "fine" $HOME'


def test_a_too_large_body_has_no_curl_command() -> None:
    assert http.line("http://127.0.0.1/", [], b"x" * (http.MAX_BODY_LENGTH + 1)) == ""
