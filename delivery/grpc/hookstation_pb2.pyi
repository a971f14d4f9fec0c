import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiveRequest(_message.Message):
    __slots__ = ("subscription", "credits", "settlements")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    subscription: Subscription
    credits: int
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, subscription: _Optional[_Union[Subscription, _Mapping]] = ..., credits: _Optional[int] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("channel", "consumer", "lease_s", "worker_id", "sticky", "resume", "auto_ack")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STICKY_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    channel: str
    consumer: str
    lease_s: float
    worker_id: str
    sticky: bool
    resume: bool
    auto_ack: bool
    def __init__(self, channel: _Optional[str] = ..., consumer: _Optional[str] = ..., lease_s: _Optional[float] = ..., worker_id: _Optional[str] = ..., sticky: bool = ..., resume: bool = ..., auto_ack: bool = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("id", "action", "leases", "delay_s", "error", "final", "lease_s")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[Settlement.Action]
        ACK: _ClassVar[Settlement.Action]
        NACK: _ClassVar[Settlement.Action]
        RELEASE: _ClassVar[Settlement.Action]
        EXTEND: _ClassVar[Settlement.Action]
    ACTION_UNSPECIFIED: Settlement.Action
    ACK: Settlement.Action
    NACK: Settlement.Action
    RELEASE: Settlement.Action
    EXTEND: Settlement.Action
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    action: Settlement.Action
    leases: _containers.RepeatedScalarFieldContainer[str]
    delay_s: float
    error: str
    final: bool
    lease_s: float
    def __init__(self, id: _Optional[int] = ..., action: _Optional[_Union[Settlement.Action, str]] = ..., leases: _Optional[_Iterable[str]] = ..., delay_s: _Optional[float] = ..., error: _Optional[str] = ..., final: bool = ..., lease_s: _Optional[float] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("deliveries", "results", "stopping")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    results: _containers.RepeatedCompositeFieldContainer[SettlementResult]
    stopping: bool
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[SettlementResult, _Mapping]]] = ..., stopping: bool = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("id", "delivery_id", "lease", "lease_expires_at", "attempt", "max_attempts", "event_type", "priority", "ordering_key", "replay", "accepted_at", "content_type", "headers", "body", "body_url")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_URL_FIELD_NUMBER: _ClassVar[int]
    id: str
    delivery_id: str
    lease: str
    lease_expires_at: _timestamp_pb2.Timestamp
    attempt: int
    max_attempts: int
    event_type: str
    priority: int
    ordering_key: str
    replay: bool
    accepted_at: _timestamp_pb2.Timestamp
    content_type: str
    headers: _containers.ScalarMap[str, str]
    body: bytes
    body_url: str
    def __init__(self, id: _Optional[str] = ..., delivery_id: _Optional[str] = ..., lease: _Optional[str] = ..., lease_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., event_type: _Optional[str] = ..., priority: _Optional[int] = ..., ordering_key: _Optional[str] = ..., replay: bool = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., content_type: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., body_url: _Optional[str] = ...) -> None: ...

class SettlementResult(_message.Message):
    __slots__ = ("id", "failed")
    ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    id: int
    failed: _containers.RepeatedCompositeFieldContainer[LeaseFailure]
    def __init__(self, id: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[LeaseFailure, _Mapping]]] = ...) -> None: ...

class LeaseFailure(_message.Message):
    __slots__ = ("lease", "error")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    lease: str
    error: str
    def __init__(self, lease: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("channel", "body", "content_type", "idempotency_key", "event_type", "priority", "deliver_at", "delay_ms", "spread_ms", "expires_at", "ordering_key", "producer_seq", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_SEQ_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    body: bytes
    content_type: str
    idempotency_key: str
    event_type: str
    priority: int
    deliver_at: _timestamp_pb2.Timestamp
    delay_ms: int
    spread_ms: int
    expires_at: _timestamp_pb2.Timestamp
    ordering_key: str
    producer_seq: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, channel: _Optional[str] = ..., body: _Optional[bytes] = ..., content_type: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., event_type: _Optional[str] = ..., priority: _Optional[int] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay_ms: _Optional[int] = ..., spread_ms: _Optional[int] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ordering_key: _Optional[str] = ..., producer_seq: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("id", "duplicate", "matched_consumers", "due_at", "url")
    ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    MATCHED_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    id: str
    duplicate: bool
    matched_consumers: int
    due_at: _timestamp_pb2.Timestamp
    url: str
    def __init__(self, id: _Optional[str] = ..., duplicate: bool = ..., matched_consumers: _Optional[int] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., url: _Optional[str] = ...) -> None: ...

class PublishBatch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PublishRequest]
    def __init__(self, messages: _Optional[_Iterable[_Union[PublishRequest, _Mapping]]] = ...) -> None: ...

class PublishResults(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PublishResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PublishResult, _Mapping]]] = ...) -> None: ...

class PublishResult(_message.Message):
    __slots__ = ("published", "problem")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    published: Published
    problem: Problem
    def __init__(self, published: _Optional[_Union[Published, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("status", "code", "detail", "field", "retry_after_s")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: str
    detail: str
    field: str
    retry_after_s: float
    def __init__(self, status: _Optional[int] = ..., code: _Optional[str] = ..., detail: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...
