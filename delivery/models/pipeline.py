"""Rows shared by the broker and its data pipeline: runs, schedules, locks and archive segments.

The pipeline is another program, which accesses these tables by their columns (docs/pipeline.md).
"""

from django.db import models

from channels_app.models.base import ExactCharField


class PipelineRun(models.Model):
    """One run of a job, requested by a person or a schedule and executed by its own process."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        FINISHED = "finished"
        FAILED = "failed"
        CANCELLED = "cancelled"

    job = models.CharField(max_length=20)
    options = models.JSONField(default=dict)
    """The command line's options by name."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    requested_by = models.CharField(max_length=200)
    requested_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    """Updated every few seconds while its process lives."""
    cancel_at = models.DateTimeField(null=True)
    """When it was asked to stop."""
    finished_at = models.DateTimeField(null=True)
    stage = models.CharField(max_length=100, blank=True, default="")
    """The current stage of work."""
    done = models.PositiveBigIntegerField(default=0)
    total = models.PositiveBigIntegerField(default=0)
    """Size of the stage, in its own unit; 0 while unknown."""
    row_count = models.PositiveBigIntegerField(default=0)
    """Rows read."""
    result = models.JSONField(default=dict)
    """The result, in a few numbers."""
    error = models.TextField(blank=True, default="")
    log = models.TextField(blank=True, default="")
    """The last lines of its log."""
    host = models.CharField(max_length=255, blank=True, default="")
    """Host of its process; for a queued run the host that is starting one, since
    ``heartbeat_at``."""
    pid = models.PositiveIntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    state__in=["queued", "running", "finished", "failed", "cancelled"]
                ),
                name="known_run_state",
            )
        ]
        indexes = [
            # queued and running runs, and each job's last success
            models.Index(fields=["state", "job", "id"], name="run_state"),
            # a job's runs, newest first
            models.Index(fields=["job", "id"], name="run_job"),
        ]

    def __str__(self) -> str:
        return f"{self.job} {self.pk}"


class PipelineSchedule(models.Model):
    """The interval of a job; the process that moves ``last_at`` forward requests a run."""

    class Mode(models.TextChoices):
        LAKE = "lake", "when there is a lake"
        ON = "on", "always"
        OFF = "off", "never"

    job = ExactCharField(max_length=20, primary_key=True)
    mode = models.CharField(max_length=4, choices=Mode.choices, default=Mode.LAKE)
    """Without a lake only jobs that a person switched on run: the broker does not start Spark
    itself."""
    every_minutes = models.PositiveIntegerField()
    last_at = models.DateTimeField(null=True)
    """When a run was last requested."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(mode__in=["lake", "on", "off"]), name="known_schedule_mode"
            )
        ]

    def __str__(self) -> str:
        return self.job


class PipelineLock(models.Model):
    """Allows one run of a job at a time: the holder keeps moving ``until`` forward."""

    job = ExactCharField(max_length=20, primary_key=True)
    run_id = models.BigIntegerField()
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.job}: run {self.run_id}"


class Segment(models.Model):
    """A part of the archive: a range of keys being moved from these tables into the lake.

    Its rows are defined by the range and the cutoffs, which never change: finished rows that were
    old enough at planning time. A replay removes rows from that set, and a message joins it when
    its last delivery is deleted. Therefore only rows that are in the files are deleted here.
    """

    class Kind(models.TextChoices):
        DELIVERIES = "deliveries"
        """Deliveries with their attempts."""
        MESSAGES = "messages"
        """Messages with their bodies; only those without a delivery in these tables."""

    class State(models.TextChoices):
        PLANNED = "planned"
        EXPORTED = "exported"
        """Its files are in the lake."""
        VERIFIED = "verified"
        """Read back from the lake and compared with these tables; rows may be deleted here."""
        PRUNING = "pruning"
        """Some of its rows are deleted here."""
        AMENDING = "amending"
        """Rows left the set after it was verified; they must be removed from the files as well."""
        PRUNED = "pruned"
        """Only in the lake."""

    kind = models.CharField(max_length=10, choices=Kind.choices)
    day = models.DateField()
    """The UTC day in which all its keys were created; a folder of the lake."""
    low = models.BigIntegerField()
    high = models.BigIntegerField()
    """Keys from ``low`` inclusive to ``high`` exclusive."""
    cutoffs = models.JSONField(default=dict)
    """Times before which the rows must have finished."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLANNED)
    files = models.JSONField(default=list)
    """For each file: table, path in the lake, rows, bytes, SHA-256 and control totals."""
    parts = models.JSONField(default=list)
    """The main table's rows in key order, in parts that are deleted in one step. For each part:
    last key, rows, sums of keys and versions, attempts. Empty once the segment is pruned."""
    row_count = models.PositiveBigIntegerField(default=0)
    """Rows of its kind in the lake."""
    byte_count = models.PositiveBigIntegerField(default=0)
    """Bytes of its files."""
    deleted_count = models.PositiveBigIntegerField(default=0)
    """Rows deleted here so far."""
    cursor = models.BigIntegerField(default=0)
    """Key up to which rows have been deleted."""
    planned_at = models.DateTimeField()
    exported_at = models.DateTimeField(null=True)
    verified_at = models.DateTimeField(null=True)
    pruned_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    state__in=["planned", "exported", "verified", "pruning", "amending", "pruned"]
                ),
                name="known_segment_state",
            )
        ]
        indexes = [
            # unfinished segments of a kind
            models.Index(fields=["kind", "state", "id"], name="segment_state"),
            # archived segments of a time
            models.Index(fields=["kind", "low"], name="segment_range"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.day}, segment {self.pk}"
