"""Register the console's pages of configuration and messages; importing them registers them."""

from channels_app.admin import channel, consumer, message, people, producer

__all__ = ["channel", "consumer", "message", "people", "producer"]
