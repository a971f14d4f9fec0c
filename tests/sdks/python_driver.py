"""The driver of boto3: each line names an operation and its parameters."""

import base64
import json
import sys
from typing import Any

import boto3
import botocore.session
from botocore import xform_name
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError


def answered(client: Any, op: str, **words: Any) -> Any:
    """Call an operation, or presign a URL; return the result."""
    if op == "hello":
        return {"version": boto3.__version__}
    if op == "presign":
        return presigned(client, **words)
    found = getattr(client, xform_name(op))(**bytes_in(words["input"]))
    found.pop("ResponseMetadata", None)
    return found


def presigned(client: Any, address: str, query: dict[str, str]) -> Any:
    request = AWSRequest("GET", f"{address}/", params=query)
    credentials = botocore.session.get_session().get_credentials()
    SigV4QueryAuth(credentials, "sqs", client.meta.region_name, expires=300).add_auth(request)
    return {"url": request.prepare().url}


def bytes_in(value: Any) -> Any:
    """Replace each ``BinaryValue`` in the parameters by the bytes that its base64 encodes."""
    if isinstance(value, list):
        return [bytes_in(one) for one in value]
    if isinstance(value, dict):
        return {
            name: base64.b64decode(one) if name == "BinaryValue" else bytes_in(one)
            for name, one in value.items()
        }
    return value


def shown(value: Any) -> str:
    """Convert a value that JSON does not have."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def main() -> None:
    """Answer every line of standard input until it ends."""
    client = boto3.client("sqs")
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"ok": answered(client, **json.loads(line))}
        except ClientError as error:
            details = error.response
            answer = {
                "error": {
                    "class": type(error).__name__.removesuffix("Exception"),
                    "code": details["Error"]["Code"],
                    "message": details["Error"]["Message"],
                    "status": details["ResponseMetadata"]["HTTPStatusCode"],
                }
            }
        sys.stdout.write(json.dumps(answer, default=shown) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
