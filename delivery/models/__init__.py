"""Models of how messages are delivered to consumers."""

from delivery.models.accounting import AccountingReport, Pruned
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
from delivery.models.notice import Notice, Standing
from delivery.models.ordering import Correlation, EarlyAck, Lane, LaneWaiter
from delivery.models.pipeline import PipelineLock, PipelineRun, PipelineSchedule, Segment
from delivery.models.queue import DeadLetter, MoveTask, Queue
from delivery.models.reports import DeadCluster, ForecastFrame, HealthDay, LatencyHour, UsageHour
from delivery.models.runtime import ConsumerHealth, PullWorker, PumpSlot, SweepRun
from delivery.models.traffic import Traffic, TrafficMark

__all__ = [
    "AccountingReport",
    "Attempt",
    "ConsumerHealth",
    "Correlation",
    "Counter",
    "DeadCluster",
    "DeadLetter",
    "Delivery",
    "EarlyAck",
    "Erasure",
    "ForecastFrame",
    "HealthDay",
    "LakeAudit",
    "LakeFinding",
    "Lane",
    "LaneWaiter",
    "LatencyHour",
    "MoveTask",
    "Notice",
    "PipelineLock",
    "PipelineRun",
    "PipelineSchedule",
    "Pruned",
    "PullWorker",
    "PumpSlot",
    "Queue",
    "Replay",
    "Restore",
    "Restored",
    "RestoredMessage",
    "Segment",
    "Standing",
    "SweepRun",
    "Traffic",
    "TrafficMark",
    "UsageHour",
]
