"""Publish a file batch by batch, and collect the results of its lines."""

import time
from collections.abc import Iterable

from delivery.management.base import Progress, counted, sized
from delivery.management.publishing.lines import Line
from delivery.management.publishing.outlets import InDoubt, Outlet, Refused, Result, TooLarge

SHOWN = 10
"""Refused lines that are printed; further ones are counted."""


class Run:
    """Publishes all batches once. Without an outlet it only checks whether they can be parsed."""

    def __init__(self, outlet: Outlet | None, progress: Progress) -> None:
        self.done = 0
        """Lines that are processed."""
        self.refused = 0
        self.shown: list[str] = []
        self.broken = ""
        """Why it stopped before the end; '' if it did not."""
        self._outlet = outlet
        self._progress = progress
        self._stored = self._duplicates = self._bytes = 0
        self._started = time.monotonic()

    def go(self, work: Iterable[list[Line]]) -> None:
        """Publish batch after batch, until all are done or a failure is permanent."""
        for batch in work:
            self._publish([line for line in batch if not line.fault])
            if self.broken:
                return
            for line in batch:
                if line.fault:
                    self._refuse(line, line.fault)
            self._progress.show(self.done)

    def summary(self) -> str:
        """Return the numbers and the rate."""
        took = max(time.monotonic() - self._started, 1e-9)
        parts = [f"{counted(self._stored, 'message')} ({sized(self._bytes)}) can be read"]
        if self._outlet is not None:
            parts = [
                f"{counted(self._stored, 'message')} ({sized(self._bytes)}) stored in {took:.1f} s",
                f"{self._stored / took:,.0f} a second",
            ]
        if self._duplicates:
            parts.append(f"{self._duplicates:,} of them stored before")
        if self.refused:
            parts.append(f"{self.refused:,} refused")
        return ", ".join(parts) + "."

    def _publish(self, lines: list[Line]) -> None:
        """Publish a batch, split if it is too large. Sets ``broken``."""
        try:
            results = self._send(lines)
        except TooLarge as error:
            if len(lines) == 1:
                self._refuse(lines[0], str(error))
                return
            half = len(lines) // 2
            for part in (lines[:half], lines[half:]):
                if not self.broken:
                    self._publish(part)
        except Refused as error:
            self.broken = str(error)
        except InDoubt as error:
            self.broken = (
                f"the connection broke ({error}) while lines {lines[0].number} to "
                f"{lines[-1].number} were being sent; they may or may not be stored. With "
                "--idempotent the file could be published again."
            )
        else:
            for line, result in zip(lines, results, strict=True):
                self._note(line, result)

    def _send(self, lines: list[Line]) -> list[Result]:
        if self._outlet is None or not lines:
            return [Result(stored=True)] * len(lines)
        return self._outlet.publish([line.item for line in lines])

    def _note(self, line: Line, result: Result) -> None:
        if not result.stored:
            self._refuse(line, result.detail)
            return
        self.done += 1
        self._stored += 1
        self._duplicates += result.duplicate
        self._bytes += line.size

    def _refuse(self, line: Line, reason: str) -> None:
        self.done += 1
        self.refused += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"Line {line.number}: {reason}")
