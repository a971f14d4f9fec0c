"""The Django app for delivering messages to consumers."""

from django.apps import AppConfig


class DeliveryConfig(AppConfig):
    name = "delivery"
    verbose_name = "Delivery"

    def ready(self) -> None:
        # Models can be imported only now.
        from channels_app.signals import delivery_changed, message_accepted
        from delivery.pull.long_polling import on_message_accepted
        from delivery.pump.confirmation import on_delivery_changed

        message_accepted.connect(on_message_accepted, dispatch_uid="delivery.wake")
        delivery_changed.connect(on_delivery_changed, dispatch_uid="delivery.confirmation")
