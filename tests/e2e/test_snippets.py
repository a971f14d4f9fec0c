"""Each snippet that consumers copy, run unchanged against our own signatures."""

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from channels_app.core.encryption import decode_secret, new_secret
from delivery.core.code_samples import MASKED, Snippet, snippets
from delivery.core.signing import sign, verify
from tests.support.receiver import Receiver

BODY = '{"type":"invoice.paid","note":"für 5 €"}\n'.encode()
ID = "msg_0cz9k3v8m0001"
VERIFIERS = ("python", "node", "go", "php", "shell")

# The consumer's program around a snippet: it passes headers and body, and exits with 1 if refused.
PYTHON = """
import sys
names = ("webhook-id", "webhook-timestamp", "webhook-signature")
verify(dict(zip(names, sys.argv[1:])), sys.stdin.buffer.read())
"""
NODE = """
const [id, timestamp, signature] = process.argv.slice(2);
const headers = {
  "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature,
};
verify(headers, require("node:fs").readFileSync(0));
"""
GO = """
package main

import ("io"; "net/http"; "os")

func main() {
    header := http.Header{}
    header.Set("webhook-id", os.Args[1])
    header.Set("webhook-timestamp", os.Args[2])
    header.Set("webhook-signature", os.Args[3])
    body, _ := io.ReadAll(os.Stdin)
    if err := Verify(header, body); err != nil {
        os.Stderr.WriteString(err.Error())
        os.Exit(1)
    }
}
"""
QUICKLY = ("-gcflags=all=-N -l",)
"""Without optimization the compiler takes half the time."""
PHP = """
$names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
verify(array_combine($names, array_slice($argv, 1)), file_get_contents("php://stdin"));
"""


def runtime(name: str) -> str:
    """Path of an interpreter or compiler; skips the test where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    return path


def one(key: str, secret: str, url: str = "http://127.0.0.1:9/hook") -> Snippet:
    return next(snippet for snippet in snippets(url, secret) if snippet.key == key)


def command(snippet: Snippet, folder: Path) -> list[str]:
    """Write the snippet with the rest of a program; return the command that runs it."""
    path = folder / snippet.file_name
    path.write_text(snippet.code)
    if snippet.key == "shell":
        return [runtime("sh"), str(path)]
    if snippet.key == "go":
        (folder / "main.go").write_text(GO)
        binary = str(folder / "verify")
        subprocess.run(
            [runtime("go"), "build", *QUICKLY, "-o", binary, str(path), str(folder / "main.go")],
            check=True,
            capture_output=True,
            # Reuse the compiler's cache: compiling Go's library takes a minute.
            env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
            | {"GO111MODULE": "off", "CGO_ENABLED": "0"},
        )
        return [binary]
    rest = {"python": PYTHON, "node": NODE, "php": PHP}[snippet.key]
    path.write_text(snippet.code + rest)
    return [runtime({"python": "python3"}.get(snippet.key, snippet.key)), str(path)]


def call(program: list[str], arguments: Iterable[str], body: bytes) -> str:
    """Run the program; return its error output, or '' when it accepts."""
    done = subprocess.run(
        [*program, *arguments], input=body, capture_output=True, timeout=300, check=False
    )
    refused = done.stderr.decode() or "refused without a word"
    return refused if done.returncode else ""


@pytest.mark.parametrize("key", VERIFIERS)
def test_snippet_accepts_signed_webhooks_and_refuses_others(key: str, tmp_path: Path) -> None:
    secret, other = new_secret(), new_secret()
    program = command(one(key, secret), tmp_path)
    now = int(time.time())

    def signed(at: int, *secrets: str) -> tuple[str, str, str]:
        keys = [decode_secret(text) for text in secrets]
        return ID, str(at), sign(keys, ID, at, BODY)

    assert call(program, signed(now, secret), BODY) == ""
    assert call(program, signed(now - 240, secret), BODY) == ""
    # During a rotation there are two signatures; the consumer's may be either.
    assert call(program, signed(now, other, secret), BODY) == ""
    assert call(program, signed(now, secret, other), BODY) == ""
    assert "wrong signature" in call(program, signed(now, other), BODY)
    assert "wrong signature" in call(program, signed(now, secret), BODY + b" ")
    assert "too old" in call(program, signed(now - 400, secret), BODY)
    assert "too old" in call(program, signed(now + 400, secret), BODY)
    _, at, signature = signed(now, secret)
    assert "wrong signature" in call(program, ("msg_other", at, signature), BODY)
    assert call(program, (ID, "", signature), BODY)
    assert call(program, (ID, f"a[$(touch {tmp_path / 'ran'})]", signature), BODY)
    assert not (tmp_path / "ran").exists()


def test_curl_snippet_sends_a_valid_webhook(tmp_path: Path, receiver: Receiver) -> None:
    runtime("curl")
    secret = new_secret()
    snippet = one("curl", secret, receiver.url("/hook?a=1&b='$(touch${IFS}ran)&c=[1]"))
    (tmp_path / snippet.file_name).write_text(snippet.code)
    (tmp_path / "body.json").write_bytes(BODY)
    done = subprocess.run(
        [runtime("sh"), snippet.file_name, "body.json"],
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=True,
    )
    (request,) = receiver.wait_for(1)
    assert request.body == BODY
    verify(secret, dict(request.headers), BODY, now=time.time())
    assert done.stdout.decode().endswith("200\n")
    assert not (tmp_path / "ran").exists()


def test_a_secret_that_is_not_shown_any_more_is_masked() -> None:
    for snippet in snippets("https://example.com/hook"):
        assert MASKED in snippet.code
        assert "SECRET_HERE" not in snippet.code
        assert "URL_HERE" not in snippet.code
