"""The SQS API without an SDK: Query protocol, signatures, API keys, and the REST API beside it."""

import base64
import io
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.interfaces.sqs.calling import Door, answer
from tests.support import factories
from tests.support.api import Api
from tests.support.door import REGION

pytestmark = pytest.mark.django_db
XML = "{http://queue.amazonaws.com/doc/2012-11-05/}"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
JSON = "application/x-amz-json-1.0"


def signed(door: Door, request: AWSRequest, auth: type[SigV4Auth] = SigV4Auth) -> AWSRequest:
    keys = Credentials(door.access_key_id, door.secret_access_key)
    auth(keys, "sqs", REGION).add_auth(request)
    return request


def sent(request: AWSRequest, **changed: str) -> AWSResponse:
    made = request.prepare()
    made.headers.update(changed)
    return answer(made)


def query(door: Door, action: str, path: str = "/", **fields: str) -> AWSResponse:
    """Make a call in the Query protocol."""
    body = urlencode({"Action": action, "Version": "2012-11-05", **fields})
    request = AWSRequest("POST", door.url + path, headers={"Content-Type": FORM}, data=body)
    return sent(signed(door, request))


def json_request(door: Door, operation: str, parameters: Mapping[str, Any]) -> AWSRequest:
    headers = {"Content-Type": JSON, "X-Amz-Target": f"AmazonSQS.{operation}"}
    return AWSRequest("POST", f"{door.url}/", headers=headers, data=json.dumps(parameters))


def parsed(answer: AWSResponse) -> ElementTree.Element:
    return ElementTree.fromstring(answer.content)  # noqa: S314 - the broker under test wrote it


def texts(answer: AWSResponse, path: str) -> list[str]:
    """The texts of the elements at a path such as ``A/B``."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/xml"
    tree = parsed(answer)
    return [found.text or "" for found in tree.findall(XML + path.replace("/", f"/{XML}"))]


def refused(answer: AWSResponse) -> tuple[int, str]:
    """The status and the error code of a refused call, in either protocol."""
    if answer.headers["Content-Type"] == JSON:
        code, _, who = answer.headers["x-amzn-query-error"].partition(";")
        assert who in {"Sender", "Receiver"}
        assert set(json.loads(answer.content)) == {"__type", "message"}
        return answer.status_code, code
    error = parsed(answer).find(f"{XML}Error")
    assert error is not None
    assert error.findtext(f"{XML}Type") in {"Sender", "Receiver"}
    return answer.status_code, error.findtext(f"{XML}Code") or ""


@pytest.fixture
def url(boto: Any, name: str) -> str:
    made: str = boto.create_queue(QueueName=name)["QueueUrl"]
    return made


# The Query protocol


def test_query_protocol_manages_queues(door: Door, name: str) -> None:
    created = query(
        door,
        "CreateQueue",
        **{
            "QueueName": name,
            "Attribute.1.Name": "VisibilityTimeout",
            "Attribute.1.Value": "60",
            "Tag.1.Key": "team",
            "Tag.1.Value": "<a&b>",
        },
    )
    (url,) = texts(created, "CreateQueueResult/QueueUrl")
    assert texts(query(door, "GetQueueUrl", QueueName=name), "GetQueueUrlResult/QueueUrl") == [url]
    listed = query(door, "ListQueues", QueueNamePrefix=name)
    assert texts(listed, "ListQueuesResult/QueueUrl") == [url]
    asked = {"QueueUrl": url, "AttributeName.1": "VisibilityTimeout"}
    found = query(door, "GetQueueAttributes", **asked)
    assert texts(found, "GetQueueAttributesResult/Attribute/Name") == ["VisibilityTimeout"]
    assert texts(found, "GetQueueAttributesResult/Attribute/Value") == ["60"]
    tags = query(door, "ListQueueTags", QueueUrl=url)
    assert texts(tags, "ListQueueTagsResult/Tag/Value") == ["<a&b>"]
    assert len(texts(tags, "ResponseMetadata/RequestId")) == 1


def test_query_protocol_sends_and_receives_messages(door: Door, url: str) -> None:
    entry = "SendMessageBatchRequestEntry"
    batch = query(
        door,
        "SendMessageBatch",
        urlsplit(url).path,  # as old clients call it: the queue's URL is the endpoint
        **{
            f"{entry}.1.Id": "one",
            f"{entry}.1.MessageBody": "<ä & b>\r\n",
            f"{entry}.1.MessageAttribute.1.Name": "kind",
            f"{entry}.1.MessageAttribute.1.Value.DataType": "String",
            f"{entry}.1.MessageAttribute.1.Value.StringValue": "x",
            f"{entry}.1.MessageAttribute.2.Name": "raw",
            f"{entry}.1.MessageAttribute.2.Value.DataType": "Binary",
            f"{entry}.1.MessageAttribute.2.Value.BinaryValue": base64.b64encode(b"\0").decode(),
            f"{entry}.2.Id": "two",
            f"{entry}.2.MessageBody": "late",
            f"{entry}.2.DelaySeconds": "-1",
        },
    )
    path = "SendMessageBatchResult/SendMessageBatchResultEntry"
    assert texts(batch, f"{path}/Id") == ["one"]
    failed = "SendMessageBatchResult/BatchResultErrorEntry"
    assert texts(batch, f"{failed}/Id") == ["two"]
    assert texts(batch, f"{failed}/SenderFault") == ["true"]
    got = query(
        door,
        "ReceiveMessage",
        **{
            "QueueUrl": url,
            "AttributeName.1": "All",
            "MessageAttributeName.1": "All",
        },
    )
    message = "ReceiveMessageResult/Message"
    assert texts(got, f"{message}/Body") == ["<ä & b>\r\n"]
    assert texts(got, f"{message}/MessageAttribute/Name") == ["kind", "raw"]
    assert texts(got, f"{message}/MessageAttribute/Value/DataType") == ["String", "Binary"]
    assert texts(got, f"{message}/MD5OfMessageAttributes") == texts(
        batch, f"{path}/MD5OfMessageAttributes"
    )
    assert "ApproximateReceiveCount" in texts(got, f"{message}/Attribute/Name")
    (handle,) = texts(got, f"{message}/ReceiptHandle")
    change = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": "600"}
    texts(query(door, "ChangeMessageVisibility", **change), "ResponseMetadata")
    entry = "DeleteMessageBatchRequestEntry.1"
    done = query(
        door,
        "DeleteMessageBatch",
        **{"QueueUrl": url, f"{entry}.Id": "x", f"{entry}.ReceiptHandle": handle},
    )
    assert texts(done, "DeleteMessageBatchResult/DeleteMessageBatchResultEntry/Id") == ["x"]


def test_query_protocol_returns_errors(door: Door, url: str) -> None:
    gone = query(door, "GetQueueUrl", QueueName="not-there")
    assert refused(gone) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    handle = query(door, "DeleteMessage", QueueUrl=url, ReceiptHandle="x")
    assert refused(handle) == (404, "ReceiptHandleIsInvalid")
    assert refused(query(door, "Explode")) == (400, "InvalidAction")
    for fields in (
        {"MaxNumberOfMessages": "many"},
        {"AttributeName": "All", "AttributeName.1": "All"},
        {"Attribute.1": "x"},
    ):
        answer = query(door, "ReceiveMessage", QueueUrl=url, **fields)
        assert refused(answer) == (400, "MalformedInput")


def test_malformed_requests_are_refused(door: Door) -> None:
    for body in ("", "[]", "nonsense", "\ud800", "[" * 100_000):
        request = json_request(door, "SendMessage", {})
        request.data = body.encode("utf-8", "surrogatepass")
        code = "MalformedInput" if body else "MissingParameter"
        assert refused(sent(signed(door, request))) == (400, code)
    wrong: list[dict[str, Any]] = [
        {"QueueUrl": 7},
        {"QueueUrl": "x", "MessageBody": ["x"]},
        {"QueueName": {}},
    ]
    for parameters in wrong:
        status, _ = refused(sent(signed(door, json_request(door, "SendMessage", parameters))))
        assert status == 400
    assert refused(sent(signed(door, json_request(door, "Explode", {})))) == (400, "InvalidAction")


# Signatures and keys


def test_a_request_without_a_valid_signature_is_refused(door: Door) -> None:
    def outcome(door: Door, changed: Mapping[str, str] | None = None) -> tuple[int, str]:
        request = signed(door, json_request(door, "ListQueues", {}))
        return refused(sent(request, **(changed or {})))

    unsigned = json_request(door, "ListQueues", {})
    assert refused(sent(unsigned)) == (403, "MissingAuthenticationToken")
    key = factories.bearer(factories.ApiKeyFactory.create(admin=True))
    assert refused(sent(unsigned, Authorization=key)) == (403, "MissingAuthenticationToken")
    stranger = door._replace(access_key_id="HSAKAAAAAAAAAAAAAAAA")
    assert outcome(stranger) == (403, "InvalidClientTokenId")
    guess = door._replace(secret_access_key="x" * 40)
    assert outcome(guess) == (403, "SignatureDoesNotMatch")
    changed = {"X-Amz-Target": "AmazonSQS.PurgeQueue"}
    assert outcome(door, changed) == (403, "SignatureDoesNotMatch")


def test_a_body_that_differs_from_the_signed_one_is_refused(door: Door) -> None:
    request = signed(door, json_request(door, "ListQueues", {}))
    made = request.prepare()
    made.body = b"{ }"
    assert refused(answer(made)) == (403, "SignatureDoesNotMatch")


@pytest.mark.trap("half a message in chunks")
@pytest.mark.parametrize("missing", [0, 1])
def test_a_body_in_chunks_is_verified_by_its_signature(door: Door, missing: int) -> None:
    made = signed(door, json_request(door, "ListQueues", {})).prepare()
    environment = {
        "CONTENT_LENGTH": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input_terminated": True,
        "wsgi.input": io.BytesIO(str(made.body).encode()[: -missing or None]),
    }
    response = answer(made, environment)
    if missing:
        assert refused(response) == (403, "SignatureDoesNotMatch")
    else:
        assert response.status_code == 200


def test_a_presigned_url_needs_no_other_credentials(door: Door, url: str) -> None:
    params = {"Action": "GetQueueAttributes", "QueueUrl": url, "AttributeName.1": "QueueArn"}
    request = AWSRequest("GET", f"{door.url}/", params=params)
    found = sent(signed(door, request, SigV4QueryAuth))
    (arn,) = texts(found, "GetQueueAttributesResult/Attribute/Value")
    assert arn.endswith(url.rpartition("/")[2])


def test_sqs_requests_do_not_hide_the_console(door: Door) -> None:
    found = sent(AWSRequest("GET", f"{door.url}/"))
    assert (found.status_code, found.headers["Location"]) == (302, "/admin/")


def test_a_key_is_limited_to_its_scopes_and_channels(boto: Any, name: str) -> None:
    name = name.lower()
    url = boto.create_queue(QueueName=name)["QueueUrl"]
    other = boto.create_queue(QueueName=f"{name}-other")["QueueUrl"]
    sender = Door.of("sender", "--scope", "publish", "--channel", name).client()
    worker = Door.of("worker", "--scope", "receive", "--channel", name).client()

    def code(call: Any, **options: Any) -> str:
        with pytest.raises(ClientError) as failed:
            call(**options)
        return str(failed.value.response["Error"]["Code"])

    sender.send_message(QueueUrl=url, MessageBody="x")
    assert sender.list_queues()["QueueUrls"] == [url]
    assert code(sender.receive_message, QueueUrl=url) == "AccessDenied"
    assert code(sender.create_queue, QueueName=f"{name}-new") == "AccessDenied"
    assert code(sender.delete_queue, QueueUrl=url) == "AccessDenied"
    assert code(worker.send_message, QueueUrl=url, MessageBody="x") == "AccessDenied"
    gone = "AWS.SimpleQueueService.NonExistentQueue"
    assert code(sender.send_message, QueueUrl=other, MessageBody="x") == gone
    assert code(worker.receive_message, QueueUrl=other) == gone
    (got,) = worker.receive_message(QueueUrl=url)["Messages"]
    worker.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_deduplication_ids_of_a_fifo_queue_apply_to_all_senders(boto: Any, name: str) -> None:
    name = f"{name.lower()}.fifo"
    url = boto.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    options = {"QueueUrl": url, "MessageGroupId": "g", "MessageDeduplicationId": "once"}
    sent = [
        Door.of(sender, "--scope", "publish", "--all-channels")
        .client()
        .send_message(MessageBody=sender, **options)["MessageId"]
        for sender in ("east", "west")
    ]

    assert sent[0] == sent[1]
    (got,) = boto.receive_message(QueueUrl=url)["Messages"]
    assert got["Body"] == "east"


def test_a_revoked_key_is_unknown(admin: Api) -> None:
    assert admin.put("producers/leaver", {}).status == 201
    leaver = Door.of("leaver", "--scope", "publish", "--all-channels")
    revoked = leaver.client()
    revoked.list_queues()
    key_id = leaver.access_key_id.removeprefix("HSAK").lower()
    assert admin.delete(f"producers/leaver/keys/{key_id}").status == 204
    with pytest.raises(ClientError) as failed:
        revoked.list_queues()
    assert failed.value.response["Error"]["Code"] == "InvalidClientTokenId"


# The REST API beside it


@pytest.fixture
def channel(boto: Any, name: str) -> str:
    """The channel of a queue."""
    boto.create_queue(QueueName=name.lower())
    return name.lower()


def test_messages_published_over_the_rest_api_are_received_over_sqs(
    admin: Api, boto: Any, channel: str
) -> None:
    url = boto.get_queue_url(QueueName=channel)["QueueUrl"]
    published = admin.post(
        f"channels/{channel}/messages",
        b'{"id": 7}',
        Hookstation_Event_Type="order.created",
        Hookstation_Ordering_Key="room-7",
        Hookstation_Header_X_Request="r-1",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    assert published.status == 202
    (got,) = boto.receive_message(
        QueueUrl=url,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    )["Messages"]
    shown = admin.get(f"messages/{got['MessageId']}")
    assert shown.json["id"] == published.json["id"]
    assert got["Body"] == '{"id": 7}'
    assert got["Attributes"]["MessageGroupId"] == "room-7"
    found = {name: it["StringValue"] for name, it in got["MessageAttributes"].items()}
    assert found == {
        "Content-Type": "application/json",
        "Hookstation-Event-Type": "order.created",
        "X-Request": "r-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }


def test_a_binary_body_is_received_in_base64(admin: Api, boto: Any, channel: str) -> None:
    url = boto.get_queue_url(QueueName=channel)["QueueUrl"]
    path = f"channels/{channel}/messages"
    assert admin.call("POST", path, b"\xff\x00", content_type="").status == 202
    (got,) = boto.receive_message(QueueUrl=url, MessageAttributeNames=["Content-*", "All"])[
        "Messages"
    ]
    assert base64.b64decode(got["Body"]) == b"\xff\x00"
    assert got["MessageAttributes"]["Content-Transfer-Encoding"]["StringValue"] == "base64"


def test_messages_sent_over_sqs_are_received_over_the_rest_api(
    admin: Api, boto: Any, channel: str
) -> None:
    url = boto.get_queue_url(QueueName=channel)["QueueUrl"]
    text = {"DataType": "String", "StringValue": "order.created"}
    sent = boto.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes={
            "Hookstation-Event-Type": text,
            "Content-Type": {"DataType": "String", "StringValue": "text/plain"},
            "Tenant": {"DataType": "String", "StringValue": "seven"},
            "count": {"DataType": "Number", "StringValue": "7"},
        },
    )
    shown = admin.get(f"messages/{sent['MessageId']}").json
    assert (shown["event_type"], shown["content_type"]) == ("order.created", "text/plain")
    (got,) = admin.post(f"channels/{channel}/consumers/sqs/receive", {}).json["messages"]
    assert (got["id"], got["body"]) == (shown["id"], "x")
    assert got["headers"]["Tenant"] == "seven"
    assert json.loads(got["headers"]["Sqs-Message-Attributes"]) == {
        "count": {"StringValue": "7", "DataType": "Number"}
    }


def test_a_channel_with_a_pull_consumer_is_a_queue(admin: Api, boto: Any, name: str) -> None:
    name = name.lower()
    assert admin.put(f"channels/{name}", {}).status == 201
    with pytest.raises(ClientError):
        boto.get_queue_url(QueueName=name)
    assert admin.put(f"channels/{name}/consumers/jobs", {"mode": "pull"}).status == 201
    url = boto.get_queue_url(QueueName=name)["QueueUrl"]
    assert boto.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    boto.send_message(QueueUrl=url, MessageBody="x")
    (got,) = boto.receive_message(QueueUrl=url)["Messages"]
    boto.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    boto.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5"})
    found = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"] == {"VisibilityTimeout": "5"}
