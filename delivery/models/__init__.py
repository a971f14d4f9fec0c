"""Models of how messages are delivered to consumers."""

from delivery.models.counter import Counter
from delivery.models.delivery import Attempt, Delivery, Replay
from delivery.models.lake import (
    Erasure,
    LakeAudit,
    LakeFinding,
    Restore,
    Restored,
    RestoredMessage,
)
from delivery.models.notifications import HealthStatus, Notification
from delivery.models.ordering import Correlation, OrderingKey, OrderingWaiter, PendingAck
from delivery.models.pipeline import PipelineLock, PipelineRun, PipelineSchedule, Segment
from delivery.models.queue import DeadLetter, MoveTask, Queue
from delivery.models.reconciliation import ReconciliationReport, RetentionMark
from delivery.models.reports import DeadCluster, ForecastFrame, HealthDay, LatencyHour, UsageHour
from delivery.models.runtime import ConsumerHealth, PullWorker, PumpSlot, SweepRun
from delivery.models.traffic import Traffic, TrafficMark

__all__ = [
    "Attempt",
    "ConsumerHealth",
    "Correlation",
    "Counter",
    "DeadCluster",
    "DeadLetter",
    "Delivery",
    "Erasure",
    "ForecastFrame",
    "HealthDay",
    "HealthStatus",
    "LakeAudit",
    "LakeFinding",
    "LatencyHour",
    "MoveTask",
    "Notification",
    "OrderingKey",
    "OrderingWaiter",
    "PendingAck",
    "PipelineLock",
    "PipelineRun",
    "PipelineSchedule",
    "PullWorker",
    "PumpSlot",
    "Queue",
    "ReconciliationReport",
    "Replay",
    "Restore",
    "Restored",
    "RestoredMessage",
    "RetentionMark",
    "Segment",
    "SweepRun",
    "Traffic",
    "TrafficMark",
    "UsageHour",
]
