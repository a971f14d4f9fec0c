"""Django app of channels, producers, consumers and accepted messages."""

from django.apps import AppConfig


class ChannelsAppConfig(AppConfig):
    name = "channels_app"
    verbose_name = "Channels"
