"""HOW a message gets to its consumers, as tables."""

from delivery.models.accounting import AccountingReport, Pruned
from delivery.models.ack import Correlation, EarlyAck
from delivery.models.counter import Counter
from delivery.models.dead_letter import DeadLetter
from delivery.models.delivery import Attempt, Delivery
from delivery.models.forecast import ForecastFrame
from delivery.models.lake import (
    Erasure,
    LakeAudit,
    LakeFinding,
    Restore,
    Restored,
    RestoredMessage,
)
from delivery.models.lane import Lane, LaneWaiter
from delivery.models.notice import Notice, Standing
from delivery.models.pipeline import PipelineLock, PipelineRun, PipelineSchedule, Segment
from delivery.models.queue import MoveTask, Queue
from delivery.models.replay import Replay
from delivery.models.runtime import ConsumerHealth, PumpSlot, SweepRun
from delivery.models.traffic import Traffic, TrafficMark
from delivery.models.triage import DeadCluster
from delivery.models.usage import HealthDay, LatencyHour, UsageHour
from delivery.models.worker import PullWorker

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
