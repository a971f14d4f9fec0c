"""boto3 against the broker's SQS API and against moto: one list of assertions for both.

Where moto differs from AWS's documentation, the test runs against the broker alone and cites the
documentation: the API Reference,
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/, and the Developer Guide,
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from django.db import OperationalError

from channels_app.models import ApiKey, ConfigVersion, Consumer
from delivery.models import Queue
from delivery.pull import backlog
from delivery.queue import dead_letters, fanout
from delivery.sqs import management
from tests.support.api import Api
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db
PREFIX = "AWS.SimpleQueueService."
Elapse = Callable[[float], None]


def refusal(call: Callable[[], Any]) -> str:
    """The error code of a refused call, without the service's prefix."""
    with pytest.raises(ClientError) as failed:
        call()
    code: str = failed.value.response["Error"]["Code"]
    return code.removeprefix(PREFIX)


def made(sqs: Any, name: str, **attributes: str) -> str:
    """Create a queue; return its URL."""
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def receive(sqs: Any, url: str, count: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Receive ``count`` messages, in as many calls as needed. Each must return some."""
    got: list[dict[str, Any]] = []
    options = {"MessageSystemAttributeNames": ["All"]} | options
    while len(got) < count:
        limit = min(10, count - len(got))
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=limit, **options)
        assert answer.get("Messages"), f"{len(got)} of {count} messages came"
        got += answer["Messages"]
    return got


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def is_empty(sqs: Any, url: str) -> bool:
    return "Messages" not in sqs.receive_message(QueueUrl=url)


def arn_of(sqs: Any, url: str) -> str:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn: str = found["Attributes"]["QueueArn"]
    return arn


def sweep() -> None:
    """Do what the broker's pumps do: publish dead letters, fan out, and execute move tasks."""
    while dead_letters.forward():
        pass
    fanout.fan_out(1000, slot=0)
    while backlog.run():
        pass


# Queues


def test_a_queue_is_created_found_and_deleted(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    assert url.endswith(f"/{name}")
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert made(sqs, name) == url
    sqs.delete_queue(QueueUrl=url)
    for call in (
        lambda: sqs.get_queue_url(QueueName=name),
        lambda: sqs.send_message(QueueUrl=url, MessageBody="late"),
        lambda: sqs.receive_message(QueueUrl=url),
        lambda: sqs.get_queue_attributes(QueueUrl=url),
        lambda: sqs.delete_queue(QueueUrl=url),
        lambda: sqs.purge_queue(QueueUrl=url),
    ):
        assert refusal(call) == "NonExistentQueue"


def test_an_error_is_the_models_exception(sqs: Any, name: str) -> None:
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name)


def test_the_same_name_with_other_attributes_is_refused(sqs: Any, name: str) -> None:
    made(sqs, name, VisibilityTimeout="10")
    made(sqs, name, VisibilityTimeout="10")
    assert refusal(lambda: made(sqs, name, VisibilityTimeout="11")) == "QueueAlreadyExists"


@pytest.mark.parametrize("wrong", ["", "a b", "a" * 81, "queue.", "a.fifo.fifo"])
def test_invalid_names_are_refused(sqs: Any, wrong: str) -> None:
    code = refusal(lambda: sqs.create_queue(QueueName=wrong))
    assert code in {"InvalidParameterValue", "MissingParameter"}


def test_queues_are_listed_by_prefix_and_page(sqs: Any, name: str) -> None:
    urls = [made(sqs, f"{name}-{number}") for number in range(3)]
    assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == urls
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=name, PaginationConfig={"PageSize": 2}
    )
    found = [page["QueueUrls"] for page in pages]
    assert found == [urls[:2], urls[2:]]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=f"{name}-x")


def test_attributes_have_defaults_and_are_set(sqs: Any, name: str) -> None:
    url = made(sqs, name, VisibilityTimeout="7", MaximumMessageSize="2048")
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["QueueArn"].endswith(f":{name}")
    assert found["QueueArn"].startswith("arn:aws:sqs:us-east-1:")
    assert abs(float(found["CreatedTimestamp"]) - time.time()) < 120
    expected = {
        "VisibilityTimeout": "7",
        "MaximumMessageSize": "2048",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
    }
    assert expected.items() <= found.items()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "43200"})
    names = ["VisibilityTimeout", "MaximumMessageSize"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert found == {"VisibilityTimeout": "43200", "MaximumMessageSize": "2048"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)


@pytest.mark.parametrize(
    ("attribute", "value", "code"),
    [
        ("Colour", "red", "InvalidAttributeName"),
        ("VisibilityTimeout", "43201", "InvalidAttributeValue"),
        ("VisibilityTimeout", "soon", "InvalidAttributeValue"),
        ("MessageRetentionPeriod", "59", "InvalidAttributeValue"),
        ("MaximumMessageSize", "1023", "InvalidAttributeValue"),
        ("ReceiveMessageWaitTimeSeconds", "21", "InvalidAttributeValue"),
        ("ContentBasedDeduplication", "true", "InvalidAttributeName"),
    ],
)
def test_invalid_queue_attributes_are_refused(
    boto: Any, name: str, attribute: str, value: str, code: str
) -> None:
    # API Reference, SetQueueAttributes: Errors. moto stores most of these.
    assert refusal(lambda: made(boto, name, **{attribute: value})) == code
    url = made(boto, name)
    assert (
        refusal(lambda: boto.set_queue_attributes(QueueUrl=url, Attributes={attribute: value}))
        == code
    )
    unknown = ["Colour"]
    assert (
        refusal(lambda: boto.get_queue_attributes(QueueUrl=url, AttributeNames=unknown))
        == "InvalidAttributeName"
    )


def test_tags(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name, tags={"team": "Ä", "tier": "1"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"tier": "2", "more": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "Ä", "tier": "2", "more": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "more"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"tier": "2"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["tier"])
    assert not sqs.list_queue_tags(QueueUrl=url).get("Tags")


def test_a_queue_has_at_most_fifty_tags(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    tags = {str(number): "" for number in range(51)}
    code = refusal(lambda: sqs.tag_queue(QueueUrl=url, Tags=tags))
    # API Reference, TagQueue: "Adding more than 50 tags to a queue isn't recommended."
    assert code in {"OverLimit", "InvalidParameterValue"}


def test_permissions_and_policies_are_unsupported(boto: Any, name: str) -> None:
    url = made(boto, name)
    entry = {"AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"]}
    for call in (
        lambda: boto.add_permission(QueueUrl=url, Label="x", **entry),
        lambda: boto.remove_permission(QueueUrl=url, Label="x"),
        lambda: boto.set_queue_attributes(QueueUrl=url, Attributes={"Policy": "{}"}),
    ):
        assert refusal(call) == "UnsupportedOperation"


# Messages


def test_a_message_is_sent_received_and_deleted(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    body = 'Grüße \U0001f600 <&> " \t\r\n ]]>'
    sent = sqs.send_message(QueueUrl=url, MessageBody=body)
    assert sent["MD5OfMessageBody"] == hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
    (got,) = receive(sqs, url)
    assert got["Body"] == body
    assert got["MessageId"] == sent["MessageId"]
    # API Reference, SendMessage: Examples. Spring Cloud AWS reads nothing else.
    assert str(uuid.UUID(sent["MessageId"])) == sent["MessageId"]
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    system = got["Attributes"]
    assert abs(int(system["SentTimestamp"]) / 1000 - time.time()) < 120
    assert int(system["ApproximateFirstReceiveTimestamp"]) >= int(system["SentTimestamp"])
    assert system["ApproximateReceiveCount"] == "1"
    assert system["SenderId"]
    assert is_empty(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert is_empty(sqs, url)


def test_a_sent_message_is_received_at_once(boto: Any, name: str) -> None:
    # Developer Guide, short and long polling: a short poll of a queue with few messages may return
    # none. The broker always returns a message that was sent before.
    url = made(boto, name)
    for number in range(20):
        boto.send_message(QueueUrl=url, MessageBody=str(number))
        (got,) = boto.receive_message(QueueUrl=url).get("Messages", [{"Body": "nothing"}])
        assert got["Body"] == str(number)
        boto.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_attributes_of_each_type_come_back_with_their_checksum(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    given = {
        "plain": {"DataType": "String", "StringValue": "text"},
        "Kind.sub_1": {"DataType": "String.uuid", "StringValue": "ü€ \n"},
        "number": {"DataType": "Number", "StringValue": "-1.5e3"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "picture": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=given)
    (got,) = receive(sqs, url, MessageAttributeNames=["All"], VisibilityTimeout=0)
    assert got["MessageAttributes"] == given
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    (got,) = receive(sqs, url, MessageAttributeNames=["Kind.*", "plain"], VisibilityTimeout=0)
    assert set(got["MessageAttributes"]) == {"Kind.sub_1", "plain"}
    (got,) = receive(sqs, url, VisibilityTimeout=0)
    assert "MessageAttributes" not in got


def test_attribute_checksums_equal_those_of_aws(sqs: Any, name: str) -> None:
    # Developer Guide, "Calculating the MD5 message digest for message attributes".
    given = {
        "b": {"DataType": "Binary", "BinaryValue": b"\x01"},
        "a": {"DataType": "String", "StringValue": "ü"},
    }
    parts = [(b"a", b"String", b"\x01", "ü".encode()), (b"b", b"Binary", b"\x02", b"\x01")]
    digest = hashlib.md5(usedforsecurity=False)
    for name_, kind, mark, value in parts:
        for part in (name_, kind):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(mark + len(value).to_bytes(4, "big") + value)
    sent = sqs.send_message(QueueUrl=made(sqs, name), MessageBody="x", MessageAttributes=given)
    assert sent["MD5OfMessageAttributes"] == digest.hexdigest()


def test_a_trace_header_comes_back(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793"
    given = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=given)
    (got,) = receive(sqs, url)
    assert got["Attributes"]["AWSTraceHeader"] == trace


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"MessageBody": "\x00"}, "InvalidMessageContents"),
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "x" * (1024 * 1024 + 1)}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "x"}, "InvalidParameterValue"),
        ({"MessageGroupId": "a b"}, "InvalidParameterValue"),
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        (
            {"MessageAttributes": {"AWS.x": {"DataType": "String", "StringValue": "x"}}},
            "InvalidParameterValue",
        ),
        (
            {"MessageAttributes": {"x": {"DataType": "Text", "StringValue": "x"}}},
            "InvalidParameterValue",
        ),
        (
            {"MessageAttributes": {"x": {"DataType": "String", "StringValue": ""}}},
            "InvalidParameterValue",
        ),
        (
            {"MessageAttributes": {"x": {"DataType": "Number", "StringValue": "x"}}},
            "InvalidParameterValue",
        ),
        (
            {
                "MessageAttributes": {
                    str(number): {"DataType": "Number", "StringValue": "1"} for number in range(11)
                }
            },
            "InvalidParameterValue",
        ),
    ],
)
def test_invalid_messages_are_refused(
    boto: Any, name: str, options: dict[str, Any], code: str
) -> None:
    # API Reference, SendMessage: Request Parameters and Errors.
    url = made(boto, name)
    given = {"MessageBody": "x"} | options
    assert refusal(lambda: boto.send_message(QueueUrl=url, **given)) == code
    assert is_empty(boto, url)


def test_a_megabyte_comes_back(boto: Any, name: str) -> None:
    # Developer Guide, message quotas: 1,048,576 bytes with the attributes.
    url = made(boto, name)
    attribute = {"a": {"DataType": "String", "StringValue": "x" * 9}}  # with its name 16 bytes
    body = "x" * (1024 * 1024 - 16)
    boto.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attribute)
    (got,) = receive(boto, url)
    assert got["Body"] == body
    longer = body + "x"
    code = refusal(
        lambda: boto.send_message(QueueUrl=url, MessageBody=longer, MessageAttributes=attribute)
    )
    assert code == "InvalidParameterValue"


def test_batches_of_each_operation(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    entries = [{"Id": f"e-{number}", "MessageBody": str(number)} for number in range(10)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == [entry["Id"] for entry in entries]
    got = receive(sqs, url, 10)
    assert sorted(bodies(got)) == [str(number) for number in range(10)]
    ids = {entry["MessageId"] for entry in sent["Successful"]}
    assert {message["MessageId"] for message in got} == ids
    handles = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(got)
    ]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**handle, "VisibilityTimeout": 600} for handle in handles]
    )
    assert len(changed["Successful"]) == 10
    done = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert len(done["Successful"]) == 10
    assert "Failed" not in done or done["Failed"] == []
    assert is_empty(sqs, url)


def test_a_batch_stores_its_valid_messages(boto: Any, name: str) -> None:
    # API Reference, SendMessageBatch: each entry has its own result.
    url = made(boto, name)
    entries = [
        {"Id": "good", "MessageBody": "good"},
        {"Id": "bad", "MessageBody": "\x01"},
        {"Id": "late", "MessageBody": "late", "DelaySeconds": -5},
    ]
    sent = boto.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == ["good"]
    failed = {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in sent["Failed"]}
    assert failed == {
        "bad": ("InvalidMessageContents", True),
        "late": ("InvalidParameterValue", True),
    }
    assert bodies(receive(boto, url)) == ["good"]


def test_invalid_batches_are_refused(sqs: Any, name: str) -> None:
    url = made(sqs, name)

    def send(*ids: str) -> str:
        entries = [{"Id": id_, "MessageBody": "x"} for id_ in ids]
        return refusal(lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries))

    assert send() == "EmptyBatchRequest"
    assert send("a", "a") == "BatchEntryIdsNotDistinct"
    assert send("a b") == "InvalidBatchEntryId"
    assert send(*map(str, range(11))) == "TooManyEntriesInBatchRequest"
    assert is_empty(sqs, url)


def test_a_batch_has_at_most_one_megabyte(boto: Any, name: str) -> None:
    # Developer Guide, message quotas; moto still has 256 KiB.
    url = made(boto, name)
    entries = [{"Id": str(number), "MessageBody": "x" * 262_144} for number in range(5)]
    assert (
        refusal(lambda: boto.send_message_batch(QueueUrl=url, Entries=entries))
        == "BatchRequestTooLong"
    )
    assert len(boto.send_message_batch(QueueUrl=url, Entries=entries[:4])["Successful"]) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": 43_201},
        {"ReceiveRequestAttemptId": "x"},
    ],
)
def test_invalid_receive_calls_are_refused(boto: Any, name: str, options: dict[str, Any]) -> None:
    # API Reference, ReceiveMessage: Request Parameters.
    url = made(boto, name)
    assert refusal(lambda: boto.receive_message(QueueUrl=url, **options)) == "InvalidParameterValue"


# Visibility and time


def test_visibility_zero_returns_a_message_and_counts_the_receive(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    sqs.send_message(QueueUrl=url, MessageBody="again")
    (first,) = receive(sqs, url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    (second,) = receive(sqs, url)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    received = "ApproximateFirstReceiveTimestamp"
    assert second["Attributes"][received] == first["Attributes"][received]


def test_retry_overrides_set_the_receive_count_of_an_event_type(
    boto: Any, admin: Api, name: str
) -> None:
    """For the broker alone, as AWS has no event types. It overrides the queue's maxReceiveCount."""
    sqs, name = boto, name.lower()
    dead = made(sqs, f"{name}-dead")
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 3})
    url = made(sqs, name, RedrivePolicy=policy, VisibilityTimeout="0")
    overrides = [{"event_types": ["hint"], "max_attempts": 1}]
    consumer = f"channels/{name}/consumers/sqs"
    assert admin.patch(consumer, {"retry_overrides": overrides}).status == 200
    kinds = {"Hookstation-Event-Type": {"DataType": "String", "StringValue": "hint"}}
    sqs.send_message(QueueUrl=url, MessageBody="hint", MessageAttributes=kinds)
    sqs.send_message(QueueUrl=url, MessageBody="other")
    got: list[str] = []
    while got.count("other") < 3 or "hint" not in got:
        got += bodies(receive(sqs, url))
    assert got.count("hint") == 1
    assert is_empty(sqs, url), "the receive that finds the last one over ends it"
    sweep()
    assert set(bodies(receive(sqs, dead, 2))) == {"hint", "other"}
    # A new redrive policy keeps the override.
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 9})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    found = admin.get(consumer).json
    assert (found["max_attempts"], found["retry_overrides"][0]["max_attempts"]) == (9, 1)


def test_a_message_returns_after_its_visibility_timeout(
    sqs: Any, name: str, elapse: Elapse
) -> None:
    url = made(sqs, name, VisibilityTimeout="10")
    sqs.send_message(QueueUrl=url, MessageBody="slow")
    (first,) = receive(sqs, url)
    assert is_empty(sqs, url)
    elapse(11)
    (second,) = receive(sqs, url, VisibilityTimeout=600)
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_an_extended_message_stays_invisible(sqs: Any, name: str, elapse: Elapse) -> None:
    url = made(sqs, name, VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="kept")
    (got,) = receive(sqs, url, VisibilityTimeout=60)
    handle = got["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=600)
    elapse(61)
    assert is_empty(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)


def test_changing_the_visibility_of_an_unleased_message_is_refused(boto: Any, name: str) -> None:
    # API Reference, ChangeMessageVisibility: Errors.
    url, other = made(boto, name), made(boto, f"{name}-other")
    boto.send_message(QueueUrl=url, MessageBody="x")
    (got,) = receive(boto, url)
    handle = got["ReceiptHandle"]

    def change(queue: str = url, handle: str = handle, seconds: int = 5) -> str:
        return refusal(
            lambda: boto.change_message_visibility(
                QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=seconds
            )
        )

    assert change(handle="x") == "ReceiptHandleIsInvalid"
    assert change(queue=other) == "ReceiptHandleIsInvalid"
    assert change(seconds=43_201) == "InvalidParameterValue"
    boto.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    assert change() == "MessageNotInflight"
    (got,) = receive(boto, url)
    boto.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert change(handle=got["ReceiptHandle"]) == "InvalidParameterValue"


def test_an_invalid_receipt_handle_deletes_nothing(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    assert (
        refusal(lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle="x"))
        == "ReceiptHandleIsInvalid"
    )


def test_a_delayed_message_is_received_later(sqs: Any, name: str, elapse: Elapse) -> None:
    url = made(sqs, name)
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=10)
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert bodies(receive(sqs, url)) == ["now"]
    assert is_empty(sqs, url)
    elapse(11)
    assert bodies(receive(sqs, url)) == ["later"]


def test_queue_delay_applies_to_messages_without_their_own(sqs: Any, name: str) -> None:
    url = made(sqs, name, DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="later")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert bodies(receive(sqs, url)) == ["now"]
    assert is_empty(sqs, url)


def test_messages_are_counted_by_their_state(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    for number in range(4):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    receive(sqs, url)
    wanted = {"": "3", "NotVisible": "1", "Delayed": "1"}
    expected = {f"ApproximateNumberOfMessages{kind}": count for kind, count in wanted.items()}
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(expected))
    assert found["Attributes"] == expected


def test_a_delay_may_be_longer_than_a_quarter_of_an_hour(boto: Any, name: str) -> None:
    # SQS itself allows at most 900 seconds.
    url = made(boto, name)
    boto.send_message(QueueUrl=url, MessageBody="next year", DelaySeconds=365 * 86_400)
    found = boto.get_queue_attributes(
        QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesDelayed"]
    )
    assert found["Attributes"] == {"ApproximateNumberOfMessagesDelayed": "1"}


def test_a_purged_queue_is_empty(sqs: Any, name: str) -> None:
    url = made(sqs, name)
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    receive(sqs, url)
    sqs.purge_queue(QueueUrl=url)
    assert is_empty(sqs, url)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["ApproximateNumberOfMessages"] == "0"
    assert found["ApproximateNumberOfMessagesNotVisible"] == "0"
    sqs.send_message(QueueUrl=url, MessageBody="new")
    assert bodies(receive(sqs, url)) == ["new"]


def test_a_recreated_queue_is_empty(sqs: Any, name: str) -> None:
    url = made(sqs, name, VisibilityTimeout="5")
    sqs.send_message(QueueUrl=url, MessageBody="old")
    sqs.delete_queue(QueueUrl=url)
    url = made(sqs, name)
    assert is_empty(sqs, url)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"] == {"VisibilityTimeout": "30"}
    sqs.send_message(QueueUrl=url, MessageBody="new")
    assert bodies(receive(sqs, url)) == ["new"]


def test_a_creation_that_broke_off_is_completed(
    boto: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.lower()  # the name of its channel, too

    def break_off(row: Queue, **options: Any) -> None:
        raise OperationalError("Lost connection.")

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "save", break_off)
        assert refusal(lambda: made(boto, name, VisibilityTimeout="5")) == "ServiceUnavailable"
    url = made(boto, name, VisibilityTimeout="5")
    found = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"] == {"VisibilityTimeout": "5"}


@pytest.mark.parametrize("step", ["_register", "_create"])
@pytest.mark.parametrize("capital", [False, True])
def test_equal_calls_may_create_a_queue_at_the_same_time(
    boto: Any, name: str, monkeypatch: pytest.MonkeyPatch, step: str, capital: bool
) -> None:
    """The second one overtakes the first before this step."""
    name = name if capital else name.lower()
    whole, urls = getattr(management, step), []

    def overtaken_once(*arguments: Any) -> Any:
        monkeypatch.setattr(management, step, whole)
        urls.append(made(boto, name, VisibilityTimeout="5"))
        return whole(*arguments)

    monkeypatch.setattr(management, step, overtaken_once)
    urls.append(made(boto, name, VisibilityTimeout="5"))
    assert len(urls) == 2
    assert urls[0] == urls[1]
    found = boto.get_queue_attributes(QueueUrl=urls[0], AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"] == {"VisibilityTimeout": "5"}


def test_of_different_calls_at_the_same_time_one_is_refused(
    boto: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, url = management._register, ""

    def overtaken_once(*arguments: Any) -> int:
        nonlocal url
        monkeypatch.setattr(management, "_register", register)
        url = made(boto, name, VisibilityTimeout="5")
        return register(*arguments)

    monkeypatch.setattr(management, "_register", overtaken_once)
    assert refusal(lambda: made(boto, name, VisibilityTimeout="6")) == "QueueAlreadyExists"
    found = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"] == {"VisibilityTimeout": "5"}


def test_a_consumer_of_the_rest_api_is_not_changed(boto: Any, admin: Api, name: str) -> None:
    name = name.lower()
    consumer = f"channels/{name}/consumers/sqs"
    admin.put(f"channels/{name}", {})
    admin.put(consumer, {"mode": "pull", "lapsed_leases": "charged", "max_attempts": 5})
    before = admin.get(consumer).json
    made(boto, name)
    assert admin.get(consumer).json == before
    assert before["max_attempts"] == 5
    assert refusal(lambda: made(boto, name, VisibilityTimeout="5")) == "QueueAlreadyExists"


def test_a_queue_of_another_team_is_neither_taken_nor_completed(boto: Any, name: str) -> None:
    name = name.lower()
    made(boto, name, VisibilityTimeout="5")
    ApiKey.objects.update(scopes=["register"], channels=[name])  # a key without a team
    Consumer.objects.update(team=TeamFactory.create())
    Queue.objects.all().delete()  # as if its creation had broken off
    ConfigVersion.bump()
    assert refusal(lambda: made(boto, name, VisibilityTimeout="5")) == "NonExistentQueue"
    assert not Queue.objects.exists()


# FIFO and groups


def fifo(sqs: Any, name: str, **attributes: str) -> str:
    return made(sqs, f"{name}.fifo", FifoQueue="true", **attributes)


def test_a_group_is_received_in_order_and_other_groups_in_parallel(sqs: Any, name: str) -> None:
    url = fifo(sqs, name)
    for number in range(3):
        for group in ("a", "b"):
            sqs.send_message(
                QueueUrl=url,
                MessageBody=f"{group}{number}",
                MessageGroupId=group,
                MessageDeduplicationId=f"{group}{number}",
            )
    got = []
    for _ in range(6):
        (one,) = receive(sqs, url)
        got.append(one)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    for group in ("a", "b"):
        mine = [one for one in got if one["Attributes"]["MessageGroupId"] == group]
        assert bodies(mine) == [f"{group}{number}" for number in range(3)]
        assert [one["Attributes"]["MessageDeduplicationId"] for one in mine] == bodies(mine)


def test_sequence_numbers_rise(boto: Any, name: str) -> None:
    # API Reference, SendMessage: SequenceNumber; moto's are random.
    url = fifo(boto, name, ContentBasedDeduplication="true")
    sent = []
    for number in range(5):
        answer = boto.send_message(QueueUrl=url, MessageBody=str(number), MessageGroupId="g")
        sent.append(int(answer["SequenceNumber"]))
    assert sent == sorted(set(sent))
    (got,) = receive(boto, url)
    assert int(got["Attributes"]["SequenceNumber"]) == sent[0]


def test_a_group_waits_for_its_leased_message(sqs: Any, name: str) -> None:
    url = fifo(sqs, name, ContentBasedDeduplication="true")
    for body in ("a1", "a2", "b1"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0])
    (first,) = receive(sqs, url)
    assert first["Body"] == "a1"
    (second,) = receive(sqs, url)
    assert second["Body"] == "b1"
    assert is_empty(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert bodies(receive(sqs, url)) == ["a2"]


def test_a_released_message_keeps_its_position(sqs: Any, name: str) -> None:
    url = fifo(sqs, name, ContentBasedDeduplication="true")
    for body in ("1", "2"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    (first,) = receive(sqs, url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    assert bodies(receive(sqs, url)) == ["1"]


def test_a_repeated_deduplication_id_is_one_message(sqs: Any, name: str) -> None:
    url = fifo(sqs, name)
    for body in ("first", "second"):
        sqs.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId="once"
        )
    (got,) = receive(sqs, url)
    assert got["Body"] == "first"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert is_empty(sqs, url)


def test_content_based_deduplication_uses_the_body(sqs: Any, name: str) -> None:
    url = fifo(sqs, name, ContentBasedDeduplication="true")
    for body in ("x", "x", "y"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    (got,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert got["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"x").hexdigest()
    assert bodies(receive(sqs, url)) == ["y"]


def test_deduplication_may_count_within_a_group(boto: Any, name: str) -> None:
    # Developer Guide, high throughput for FIFO queues: DeduplicationScope.
    url = fifo(
        boto, name, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId"
    )
    for group in ("a", "b", "a"):
        boto.send_message(
            QueueUrl=url, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="1"
        )
    got = receive(boto, url, 2)
    assert sorted(bodies(got)) == ["a", "b"]
    assert [one["Attributes"]["MessageDeduplicationId"] for one in got] == ["1", "1"]


def test_fifo_requests_without_required_fields_are_refused(sqs: Any, name: str) -> None:
    url = fifo(sqs, name)

    def send(**options: Any) -> str:
        return refusal(lambda: sqs.send_message(QueueUrl=url, MessageBody="x", **options))

    assert send(MessageDeduplicationId="x") == "MissingParameter"
    assert send(MessageGroupId="x") == "InvalidParameterValue"
    both = {"MessageGroupId": "x", "MessageDeduplicationId": "x"}
    assert send(DelaySeconds=5, **both) == "InvalidParameterValue"
    assert refusal(lambda: made(sqs, name, FifoQueue="true")) == "InvalidParameterValue"


def test_a_repeated_receive_attempt_gets_the_same_messages(boto: Any, name: str) -> None:
    # API Reference, ReceiveMessage: ReceiveRequestAttemptId.
    url = fifo(boto, name, ContentBasedDeduplication="true")
    for body in ("1", "2"):
        boto.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    (first,) = receive(boto, url, ReceiveRequestAttemptId="try-1")
    (again,) = receive(boto, url, ReceiveRequestAttemptId="try-1")
    assert again["MessageId"] == first["MessageId"]
    boto.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert bodies(receive(boto, url, ReceiveRequestAttemptId="try-2")) == ["2"]


def test_a_standard_queue_takes_groups_and_keeps_no_order(boto: Any, name: str) -> None:
    # Developer Guide, fair queues: MessageGroupId on a standard queue.
    url = made(boto, name)
    for number in range(3):
        boto.send_message(QueueUrl=url, MessageBody=str(number), MessageGroupId="tenant-1")
    got = receive(boto, url, 3)
    assert sorted(bodies(got)) == ["0", "1", "2"]
    assert {one["Attributes"]["MessageGroupId"] for one in got} == {"tenant-1"}


# Dead letters


def redrive(sqs: Any, target: str, receives: int = 2) -> str:
    policy = {"deadLetterTargetArn": arn_of(sqs, target), "maxReceiveCount": receives}
    return json.dumps(policy)


def spend(sqs: Any, url: str, receives: int = 2) -> None:
    """Receive the only message ``receives`` times, and release it each time."""
    for _ in range(receives):
        (got,) = receive(sqs, url)
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
    assert is_empty(sqs, url)
    sweep()


def test_a_message_received_too_often_goes_to_the_dead_letter_queue(sqs: Any, name: str) -> None:
    target = made(sqs, f"{name}-dead")
    url = made(sqs, name, RedrivePolicy=redrive(sqs, target))
    attributes = {"kind": {"DataType": "Number", "StringValue": "7"}}
    sqs.send_message(QueueUrl=url, MessageBody="poison", MessageAttributes=attributes)
    spend(sqs, url)
    (got,) = receive(sqs, target, MessageAttributeNames=["All"])
    assert got["Body"] == "poison"
    assert got["MessageAttributes"] == attributes
    assert sqs.list_dead_letter_source_queues(QueueUrl=target)["queueUrls"] == [url]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(found["RedrivePolicy"]) == json.loads(redrive(sqs, target))


def test_an_expired_receive_counts_towards_the_dead_letter_queue(
    sqs: Any, name: str, elapse: Elapse
) -> None:
    target = made(sqs, f"{name}-dead")
    url = made(sqs, name, RedrivePolicy=redrive(sqs, target, 1), VisibilityTimeout="10")
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    receive(sqs, url)
    elapse(11)
    assert is_empty(sqs, url)  # this receive finds that the visibility timeout has ended
    sweep()
    assert bodies(receive(sqs, target)) == ["poison"]


def test_a_dead_letter_names_its_source_queue(boto: Any, name: str) -> None:
    # API Reference, ReceiveMessage: DeadLetterQueueSourceArn.
    target = made(boto, f"{name}-dead")
    url = made(boto, name, RedrivePolicy=redrive(boto, target, 1))
    boto.send_message(QueueUrl=url, MessageBody="poison")
    spend(boto, url, 1)
    (got,) = receive(boto, target)
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(boto, url)
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize(
    "policy",
    [
        "x",
        "{}",
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:none", "maxReceiveCount": 3}',
        '{"deadLetterTargetArn": "arn:aws:s3:::x", "maxReceiveCount": 3}',
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:x", "maxReceiveCount": 0}',
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:x", "maxReceiveCount": 1001}',
    ],
)
def test_invalid_redrive_policies_are_refused(boto: Any, name: str, policy: str) -> None:
    # Developer Guide, dead-letter queues: the queue exists, maxReceiveCount is 1 to 1,000.
    assert refusal(lambda: made(boto, name, RedrivePolicy=policy)) == "InvalidParameterValue"


def test_a_dead_letter_queue_lists_its_source_queues(boto: Any, name: str) -> None:
    # API Reference, SetQueueAttributes: RedriveAllowPolicy.
    denying = made(boto, f"{name}-no", RedriveAllowPolicy='{"redrivePermission": "denyAll"}')
    policy = redrive(boto, denying)
    assert refusal(lambda: made(boto, name, RedrivePolicy=policy)) == "InvalidParameterValue"
    arn = arn_of(boto, denying).removesuffix("-no")
    allowing = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn]})
    boto.set_queue_attributes(QueueUrl=denying, Attributes={"RedriveAllowPolicy": allowing})
    url = made(boto, name, RedrivePolicy=policy)
    other = refusal(lambda: made(boto, f"{name}-other", RedrivePolicy=policy))
    assert other == "InvalidParameterValue"
    boto.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert boto.list_dead_letter_source_queues(QueueUrl=denying)["queueUrls"] == []


def newest_task(sqs: Any, arn: str) -> dict[str, Any]:
    """Return a queue's newest move task."""
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    found: dict[str, Any] = task
    return found


def test_dead_letters_are_moved_back(boto: Any, name: str) -> None:
    # API Reference, StartMessageMoveTask; without a destination moto answers 500.
    target = made(boto, f"{name}-dead")
    url = made(boto, name, RedrivePolicy=redrive(boto, target, 1))
    boto.send_message(QueueUrl=url, MessageBody="poison")
    spend(boto, url, 1)
    waiting = {"QueueUrl": target, "AttributeNames": ["ApproximateNumberOfMessages"]}
    found = boto.get_queue_attributes(**waiting)["Attributes"]
    assert found == {"ApproximateNumberOfMessages": "1"}
    boto.start_message_move_task(SourceArn=arn_of(boto, target))
    sweep()
    task = newest_task(boto, arn_of(boto, target))
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert bodies(receive(boto, url)) == ["poison"]
    assert is_empty(boto, target)


def test_messages_are_moved_to_another_queue_and_a_task_is_cancelled(boto: Any, name: str) -> None:
    # API Reference, StartMessageMoveTask, CancelMessageMoveTask.
    target, other = made(boto, f"{name}-dead"), made(boto, f"{name}-other")
    made(boto, name, RedrivePolicy=redrive(boto, target))
    arn = arn_of(boto, target)
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(5)]
    boto.send_message_batch(QueueUrl=target, Entries=entries)
    options = {"SourceArn": arn, "DestinationArn": arn_of(boto, other)}
    handle = boto.start_message_move_task(**options, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    assert refusal(lambda: boto.start_message_move_task(**options)) == "UnsupportedOperation"
    sweep()
    receive(boto, other)
    assert is_empty(boto, other), "it moves one message per second"
    boto.cancel_message_move_task(TaskHandle=handle)
    task = newest_task(boto, arn)
    assert (task["Status"], task["MaxNumberOfMessagesPerSecond"]) == ("CANCELLED", 1)
    assert (
        refusal(lambda: boto.cancel_message_move_task(TaskHandle=handle)) == "UnsupportedOperation"
    )
    boto.start_message_move_task(**options)
    sweep()
    assert newest_task(boto, arn)["Status"] == "COMPLETED"
    receive(boto, other, 4)
    assert is_empty(boto, target)


def test_a_message_without_a_source_queue_is_not_moved_without_a_destination(
    boto: Any, name: str
) -> None:
    # API Reference, StartMessageMoveTask: messages go to the queues that they came from.
    target = made(boto, f"{name}-dead")
    made(boto, name, RedrivePolicy=redrive(boto, target))
    boto.send_message(QueueUrl=target, MessageBody="direct")
    boto.start_message_move_task(SourceArn=arn_of(boto, target))
    sweep()
    task = newest_task(boto, arn_of(boto, target))
    assert task["Status"] == "FAILED"
    assert "name a destination" in task["FailureReason"]
    assert bodies(receive(boto, target)) == ["direct"]


def test_invalid_message_move_tasks_are_refused(boto: Any, name: str) -> None:
    # API Reference, StartMessageMoveTask: Errors.
    def start(**options: Any) -> str:
        return refusal(lambda: boto.start_message_move_task(**options))

    arn = arn_of(boto, made(boto, name))
    assert start(SourceArn=arn) == "InvalidParameterValue"
    assert start(SourceArn=f"{arn}-not-there") == "ResourceNotFoundException"
    assert start(SourceArn="x") == "InvalidParameterValue"
    lost = refusal(lambda: boto.cancel_message_move_task(TaskHandle="x"))
    assert lost == "ResourceNotFoundException"
