"""Rows between the broker and its data pipeline: what is asked for, what runs, what is archived.

The pipeline is another program, which reaches these tables by their columns (docs/pipeline.md).
"""

from django.db import models

from channels_app.models.base import ExactCharField


class PipelineRun(models.Model):
    """One run of a job: asked for by a person or a schedule, worked off by a process of its own."""

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
    """Moves every few seconds while its process lives."""
    cancel_at = models.DateTimeField(null=True)
    """Since when it is asked to stop."""
    finished_at = models.DateTimeField(null=True)
    stage = models.CharField(max_length=100, blank=True, default="")
    """What it is doing."""
    done = models.PositiveBigIntegerField(default=0)
    total = models.PositiveBigIntegerField(default=0)
    """Of the stage, in its own unit; 0 while nobody knows."""
    row_count = models.PositiveBigIntegerField(default=0)
    """Rows that it read."""
    result = models.JSONField(default=dict)
    """What it came to, in a few numbers."""
    error = models.TextField(blank=True, default="")
    log = models.TextField(blank=True, default="")
    """Its last lines."""
    host = models.CharField(max_length=255, blank=True, default="")
    """Of its process; of a queued run the host that is starting one, since ``heartbeat_at``."""
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
            # who is waiting or at work, and each job's last success
            models.Index(fields=["state", "job", "id"], name="run_state"),
            # a job's runs, newest first
            models.Index(fields=["job", "id"], name="run_job"),
        ]

    def __str__(self) -> str:
        return f"{self.job} {self.pk}"


class PipelineSchedule(models.Model):
    """A job's rhythm: whoever moves ``last_at`` forward asks for a run."""

    class Mode(models.TextChoices):
        LAKE = "lake", "when there is a lake"
        ON = "on", "always"
        OFF = "off", "never"

    job = ExactCharField(max_length=20, primary_key=True)
    mode = models.CharField(max_length=4, choices=Mode.choices, default=Mode.LAKE)
    """The broker alone never starts Spark: without a lake only what somebody switched on runs."""
    every_minutes = models.PositiveIntegerField()
    last_at = models.DateTimeField(null=True)
    """When a run was asked for last."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(mode__in=["lake", "on", "off"]), name="known_schedule_mode"
            )
        ]

    def __str__(self) -> str:
        return self.job


class PipelineLock(models.Model):
    """One run of a job at a time: whoever holds the row, as long as the run moves ``until``."""

    job = ExactCharField(max_length=20, primary_key=True)
    run_id = models.BigIntegerField()
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.job}: run {self.run_id}"


class Segment(models.Model):
    """A part of the archive: a range of keys on its way from these tables into the lake.

    What belongs to it is said by the range and the cutoffs, which never change: finished rows that
    were old enough when it was planned. A replay takes rows out of that set, and a message joins it
    whose last delivery was deleted: so nothing is deleted here that is not in the files.
    """

    class Kind(models.TextChoices):
        DELIVERIES = "deliveries"
        """With their attempts."""
        MESSAGES = "messages"
        """With their bodies; those that have no delivery left here."""

    class State(models.TextChoices):
        PLANNED = "planned"
        EXPORTED = "exported"
        """Its files are in the lake."""
        VERIFIED = "verified"
        """Read back from the lake and compared with these tables: may be deleted here."""
        PRUNING = "pruning"
        """Some of its rows are deleted here."""
        AMENDING = "amending"
        """Rows left the set after it was verified: they have to leave the files as well."""
        PRUNED = "pruned"
        """In the lake alone."""

    kind = models.CharField(max_length=10, choices=Kind.choices)
    day = models.DateField()
    """In which all its keys were made, UTC; a folder of the lake."""
    low = models.BigIntegerField()
    high = models.BigIntegerField()
    """Keys from ``low`` up to, but not with, ``high``."""
    cutoffs = models.JSONField(default=dict)
    """Before which instants rows must have finished."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLANNED)
    files = models.JSONField(default=list)
    """Of each: table, path in the lake, rows, bytes, SHA-256 and control totals."""
    parts = models.JSONField(default=list)
    """Its own table's rows in the order of their keys, in parts that are deleted here at once. Of
    each: last key, rows, their keys and versions added up, attempts. Empty once it is pruned."""
    row_count = models.PositiveBigIntegerField(default=0)
    """Rows of its kind in the lake."""
    byte_count = models.PositiveBigIntegerField(default=0)
    """Of its files."""
    deleted_count = models.PositiveBigIntegerField(default=0)
    """Of them, those that have been deleted here."""
    cursor = models.BigIntegerField(default=0)
    """Up to which key that has been done."""
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
            # what is under way of a kind
            models.Index(fields=["kind", "state", "id"], name="segment_state"),
            # what the lake has of a time
            models.Index(fields=["kind", "low"], name="segment_range"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.day}, segment {self.pk}"
