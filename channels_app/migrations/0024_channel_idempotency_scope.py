from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0023_consumer_retry_overrides")]

    operations = [
        migrations.AddField(
            model_name="channel",
            name="idempotency_scope",
            field=models.CharField(
                choices=[("producer", "Producer"), ("channel", "Channel")],
                default="producer",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="channel",
            constraint=models.CheckConstraint(
                condition=models.Q(("idempotency_scope__in", ["producer", "channel"])),
                name="known_idempotency_scope",
            ),
        ),
    ]
