#!/usr/bin/env bash
# One would guess: with CURLOPT_PATH_AS_IS libcurl sends the path of a URL exactly as it is written.
#
# What happens: dot segments stay, but percent-encodings are still rewritten in upper case: /x/%2e%2e/hook goes out as
# /x/%2E%2E/hook. Without the option it goes out as /hook. Only CURLOPT_REQUEST_TARGET sends every byte as given. pycurl
# can set that option but not unset it: on a handle that is used again, it must follow each later URL.
#
# Why it matters: a receiver that computes its own signature over the path, or a router that compares escapes, answers
# 401 or 404 to a request whose URL is the registered one to everybody who looks at it. The broker sets the request
# target (docs/traps.md, "another path than the registered one").
#
# Exits with 0 while this holds, with 1 if it changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: pycurl==7.49.0
cat >"$folder/paths.py" <<'PATHS'
import socket
import threading

import pycurl

listener = socket.create_server(("127.0.0.1", 0))
heard = []


def serve():
    while True:
        client, _ = listener.accept()
        heard.append(client.recv(65536).split(b" ")[1].decode())
        client.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        client.close()


threading.Thread(target=serve, daemon=True).start()
path = "/x/%2e%2e/y/../hook"
for options in ([], [(pycurl.PATH_AS_IS, 1)], [(pycurl.REQUEST_TARGET, path)]):
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"http://127.0.0.1:{listener.getsockname()[1]}{path}")
    for option, value in options:
        handle.setopt(option, value)
    handle.perform()
    handle.close()
print(pycurl.version)
print("given:         ", path)
print("by default:    ", heard[0])
print("PATH_AS_IS:    ", heard[1])
print("REQUEST_TARGET:", heard[2])
assert heard == ["/hook", "/x/%2E%2E/y/../hook", path], heard
PATHS
"$folder/venv/bin/python" "$folder/paths.py"
# Seen: PycURL/7.49.0 libcurl/8.23.0: /hook, /x/%2E%2E/y/../hook, and the path as given.
