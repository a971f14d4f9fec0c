"""Models get the field's terms; their rows stay."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0024_channel_idempotency_scope")]

    operations = [
        migrations.RenameModel("DirectoryVersion", "ConfigVersion"),
        migrations.RenameModel("EarlyNumber", "PendingSequenceNumber"),
    ]
