from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0022_consumer_dead_letter_channel")]

    operations = [
        migrations.AddField(
            model_name="consumer",
            name="retry_overrides",
            field=models.JSONField(blank=True, default=list),
        ),
    ]
