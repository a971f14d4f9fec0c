"""The proto file's generated code, and the table of gRPC's status codes."""

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from django.db import OperationalError
from google.protobuf.message import DecodeError

from channels_app.core.errors import BrokerError, NotFound, RateLimited, StorageFull
from delivery.grpc import errors

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("delivery/grpc", "clients/python/src/hookstation_client/grpc")


@pytest.mark.slow("starts the compiler")
def test_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    # As tools/proto does.
    options = ["-I", "delivery/grpc", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", *options, "hookstation.proto"]
    subprocess.run(compiler, cwd=ROOT, check=True)
    for name in ("hookstation_pb2.py", "hookstation_pb2.pyi"):
        made = (tmp_path / name).read_text()
        for folder in FOLDERS:
            assert (ROOT / folder / name).read_text() == made, f"run tools/proto: {folder}/{name}"


def test_every_documented_status_has_a_code() -> None:
    """All but those that only HTTP requests can get."""
    page = (ROOT / "docs/api.md").read_text()
    documented = {int(status) for status in re.findall(r"^\| `\w+` \| ([45]\d\d) \|", page, re.M)}
    assert len(documented) > 10
    assert documented - errors.CODES.keys() == {405, 411, 412}


def test_page_has_the_table() -> None:
    page = (ROOT / "docs/grpc.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([0-9, ]+) \|", page, re.M)
    shown = {int(status): name for name, some in rows for status in some.split(",")}
    assert shown == {status: code.name for status, code in errors.CODES.items()}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("unknown_channel", "no"), grpc.StatusCode.NOT_FOUND, "unknown_channel"),
        (StorageFull("storage_full", "no"), grpc.StatusCode.RESOURCE_EXHAUSTED, "storage_full"),
        (RateLimited("rate_limited", "no"), grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited"),
        (OperationalError("gone"), grpc.StatusCode.UNAVAILABLE, "storage_unavailable"),
        (DecodeError("no"), grpc.StatusCode.INVALID_ARGUMENT, "malformed_body"),
        (ZeroDivisionError(), grpc.StatusCode.INTERNAL, "internal_error"),
    ],
)
def test_errors_have_a_status_and_the_code_of_rest(
    error: Exception, status: grpc.StatusCode, code: str
) -> None:
    problem = errors.problem_of(error)
    assert (errors.code_of(problem), problem.code) == (status, code)
    assert problem.detail


def test_every_kind_of_error_has_a_code() -> None:
    kinds = BrokerError.__subclasses__()
    assert len(kinds) > 5
    for kind in kinds:
        # gRPC has no If-Match, and knows the length of each message.
        assert kind.status in errors.CODES or kind.status in {411, 412}
