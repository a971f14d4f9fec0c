"""Write code samples that verify deliveries, or receive messages.

Each one is complete, needs only the standard library of its language, and is run by a test as it
is.
"""

import shlex
from dataclasses import dataclass

MASKED = "whsec_..."
"""Placeholder for a secret that is no longer shown."""
_PYTHON = '''\
import base64
import hashlib
import hmac
import time

SECRET = "SECRET_HERE"


def verify(headers, body: bytes) -> None:
    """Raise ValueError unless the request is genuine and at most five minutes old."""
    timestamp = headers["webhook-timestamp"]
    if abs(time.time() - int(timestamp)) > 300:
        raise ValueError("too old, or from the future")
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{timestamp}.".encode() + body
    digest = hmac.new(key, content, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(digest)
    given = headers["webhook-signature"].encode().split()
    if not any(hmac.compare_digest(expected, token) for token in given):
        raise ValueError("wrong signature")
'''

_NODE = """\
const crypto = require("node:crypto");

const SECRET = "SECRET_HERE";

/** Throws unless the request is genuine and at most five minutes old. */
function verify(headers, body) {
  const timestamp = headers["webhook-timestamp"];
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300)) {
    throw new Error("too old, or from the future");
  }
  const key = Buffer.from(SECRET.slice("whsec_".length), "base64");
  const hmac = crypto.createHmac("sha256", key);
  hmac.update(`${headers["webhook-id"]}.${timestamp}.`).update(body);
  const expected = Buffer.from("v1," + hmac.digest("base64"));
  const genuine = headers["webhook-signature"].split(" ").some((token) => {
    const given = Buffer.from(token);
    return given.length === expected.length && crypto.timingSafeEqual(given, expected);
  });
  if (!genuine) {
    throw new Error("wrong signature");
  }
}
"""

_GO = """\
package main

import (
\t"crypto/hmac"
\t"crypto/sha256"
\t"encoding/base64"
\t"errors"
\t"net/http"
\t"strconv"
\t"strings"
\t"time"
)

const secret = "SECRET_HERE"

// Verify returns an error unless the request is genuine and at most five minutes old.
func Verify(header http.Header, body []byte) error {
\ttimestamp := header.Get("webhook-timestamp")
\tseconds, err := strconv.ParseInt(timestamp, 10, 64)
\tif err != nil {
\t\treturn errors.New("no timestamp")
\t}
\tif age := time.Now().Unix() - seconds; age > 300 || age < -300 {
\t\treturn errors.New("too old, or from the future")
\t}
\tkey, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
\tif err != nil {
\t\treturn err
\t}
\tmac := hmac.New(sha256.New, key)
\tmac.Write([]byte(header.Get("webhook-id") + "." + timestamp + "."))
\tmac.Write(body)
\texpected := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
\tfor _, given := range strings.Fields(header.Get("webhook-signature")) {
\t\tif hmac.Equal([]byte(given), []byte(expected)) {
\t\t\treturn nil
\t\t}
\t}
\treturn errors.New("wrong signature")
}
"""

_PHP = """\
<?php

const SECRET = "SECRET_HERE";

/** Throws unless the request is genuine and at most five minutes old. */
function verify(array $headers, string $body): void
{
    $timestamp = $headers["webhook-timestamp"];
    if (abs(time() - (int) $timestamp) > 300) {
        throw new RuntimeException("too old, or from the future");
    }
    $key = base64_decode(substr(SECRET, strlen("whsec_")));
    $content = $headers["webhook-id"] . "." . $timestamp . "." . $body;
    $expected = "v1," . base64_encode(hash_hmac("sha256", $content, $key, true));
    foreach (explode(" ", $headers["webhook-signature"]) as $given) {
        if (hash_equals($expected, $given)) {
            return;
        }
    }
    throw new RuntimeException("wrong signature");
}
"""

# Checked before the arithmetic, in which bash would execute a malicious timestamp.
_SHELL = """\
#!/bin/sh
# sh verify.sh "$webhook_id" "$webhook_timestamp" "$webhook_signature" < body
secret='SECRET_HERE'
set -eu
refuse() { echo "$1" >&2; exit 1; }
case $2 in '' | 0* | *[!0-9]*) refuse "no timestamp" ;; esac
age=$(($(date +%s) - $2))
[ "${age#-}" -le 300 ] || refuse "too old, or from the future"
key=$(printf %s "${secret#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \\n')
expected=v1,$({ printf '%s.%s.' "$1" "$2"; cat; } |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
case " $3 " in *" $expected "*) echo genuine ;; *) refuse "wrong signature" ;; esac
"""

_CURL = """\
#!/bin/sh
# sh send.sh body.json
secret='SECRET_HERE'
url=URL_HERE
set -eu
id=msg_by_hand timestamp=$(date +%s)
key=$(printf %s "${secret#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \\n')
signature=v1,$({ printf '%s.%s.' "$id" "$timestamp"; cat "$1"; } |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
curl -sSg -w '%{http_code}\\n' --data-binary "@$1" "$url" \\
  -H "Content-Type: application/json" -H "webhook-id: $id" \\
  -H "webhook-timestamp: $timestamp" -H "webhook-signature: $signature"
"""

_RAW = "Give it the body as it came in, byte for byte"
_ALL = (
    (
        *("python", "Python", "verify.py"),
        f"{_RAW}: request.body in Django, request.get_data() in Flask.",
        _PYTHON,
    ),
    ("node", "Node", "verify.js", f"{_RAW}: with express.raw(), before anything parses it.", _NODE),
    ("go", "Go", "verify.go", f"{_RAW}: what io.ReadAll(r.Body) returns.", _GO),
    (
        *("php", "PHP", "verify.php"),
        f"{_RAW}: file_get_contents('php://input'). Names of headers in lower case.",
        _PHP,
    ),
    (
        *("shell", "Shell", "verify.sh"),
        "Checks a request that you kept, by hand. Needs openssl.",
        _SHELL,
    ),
    (
        *("curl", "curl", "send.sh"),
        "Signs a body of your own and sends it to your address, as we would.",
        _CURL,
    ),
)

KEY = "hsk_..."
"""Placeholder for the reader's API key."""
_PULL_PYTHON = """\
import json
import os
import time
import urllib.error
import urllib.request

API = "API_HERE"
KEY = os.environ["HOOKSTATION_KEY"]  # a key of your team with the scope receive


def call(path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"{API}/{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def handle(message: dict) -> None:
    print(message["id"], message["event_type"], message.get("body"), flush=True)


while True:
    try:
        received = call("CONSUMER_HERE/receive", {"max": 10, "wait_s": 20, "lease_s": 60})
        done = []
        for message in received["messages"]:
            try:
                handle(message)
                done.append(message["lease"])
            except Exception as error:
                failed = {"leases": [message["lease"]], "error": str(error)[:300]}
                call("leases/nack", failed)
        if done:
            call("leases/ack", {"leases": done})
    except urllib.error.URLError as error:  # also what the server refuses; what is held comes again
        print(error, flush=True)
        time.sleep(1)
"""

_PULL_SHELL = """\
# One message; HOOKSTATION_KEY is a key of your team with the scope receive.
curl -sS API_HERE/CONSUMER_HERE/receive \\
  -H "Authorization: Bearer $HOOKSTATION_KEY" -H 'Content-Type: application/json' \\
  -d '{"max": 1, "wait_s": 20}'

# Done: put the lease of the answer in here.
curl -sS API_HERE/leases/ack \\
  -H "Authorization: Bearer $HOOKSTATION_KEY" -H 'Content-Type: application/json' \\
  -d '{"leases": ["lse_..."]}'
"""

_PULL_ALL = (
    ("python", "Python", "worker.py", "A worker; start as many as you like.", _PULL_PYTHON),
    ("shell", "Shell", "receive.sh", "One message by hand.", _PULL_SHELL),
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One code example to copy."""

    key: str
    """Used in URLs and file names: ``python``."""
    title: str
    file_name: str
    note: str
    """One sentence about its use."""
    code: str


def snippets(url: str, secret: str = MASKED) -> list[Snippet]:
    """Return code that verifies signatures by ``secret``, and a shell script that creates one."""
    return [
        Snippet(
            key=key,
            title=title,
            file_name=file_name,
            note=note,
            code=code.replace("SECRET_HERE", secret).replace("URL_HERE", shlex.quote(url)),
        )
        for key, title, file_name, note, code in _ALL
    ]


def receiving(api: str, channel: str, client_id: str) -> list[Snippet]:
    """Return code that receives and acknowledges; ``api`` is the URL up to ``/api/v1``."""
    place = {"API_HERE": api, "CONSUMER_HERE": f"channels/{channel}/consumers/{client_id}"}
    snippets = []
    for key, title, file_name, note, code in _PULL_ALL:
        for name, value in place.items():
            code = code.replace(name, value)
        snippets.append(Snippet(key, title, file_name, note, code))
    return snippets
