"""Configure SQS clients for a broker."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import boto3
from botocore.config import Config

from tests.support.broker import Broker

REGION = "us-east-1"


def client(environment: dict[str, str], attempts: int = 1) -> Any:
    """Return a boto3 client with the endpoint and credentials of this environment."""
    return boto3.client(
        "sqs",
        endpoint_url=environment["AWS_ENDPOINT_URL_SQS"],
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"total_max_attempts": attempts}, read_timeout=90),
    )


class Door(NamedTuple):
    """A running broker and the key pair of an SQS client with all scopes."""

    broker: Broker
    url: str
    access_key_id: str
    secret_access_key: str

    @classmethod
    def of(cls, broker: Broker) -> Door:
        """Return a broker's SQS endpoint with a new key."""
        door = cls(broker, f"http://127.0.0.1:{broker.port}", "", "")
        made = door.key("sqs", "--scope", "admin", "--all-channels")
        return door._replace(
            access_key_id=made["AWS_ACCESS_KEY_ID"],
            secret_access_key=made["AWS_SECRET_ACCESS_KEY"],
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of an unmodified client."""
        return {
            "AWS_ENDPOINT_URL_SQS": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def key(self, *arguments: str) -> dict[str, str]:
        """Return the environment variables with a new key, created with these arguments."""
        text = self.broker.manage("create_api_key", *arguments, "--sigv4")
        return self.environment | dict(re.findall(r"^(AWS_\w+)=(.*)$", text, re.MULTILINE))
