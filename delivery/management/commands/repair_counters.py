"""Provide ``manage.py repair_counters``, which recounts the rows and corrects the counters."""

from typing import Any

from channels_app.models import Consumer
from delivery.maintenance import counters
from delivery.management.base import Command as BaseCommand
from delivery.management.base import ProgressBar, counted


class Command(BaseCommand):
    """Runs delivery/maintenance/counters.py for each consumer."""

    help = (
        "Count the deliveries of each consumer and correct counters that differ.\n\n"
        "`manage.py reconcile` reports when this is needed. Runs beside the broker; changes in\n"
        "the meantime are counted correctly."
    )
    examples = "  manage.py repair_counters"

    def handle(self, **options: Any) -> None:
        """Print how many consumers' counters were wrong."""
        consumer_ids = list(Consumer.objects.order_by("id").values_list("id", flat=True))
        progress = ProgressBar(self.stdout, len(consumer_ids), "consumers")
        mended = 0
        for place, consumer_id in enumerate(consumer_ids, 1):
            mended += counters.recount(consumer_id)
            progress.show(place)
        progress.close()
        self.stdout.write(
            self.style.SUCCESS(f"{counted(len(consumer_ids), 'consumer')}, {mended:,} corrected.")
        )
