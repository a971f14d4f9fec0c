import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0021_consumer_lapsed_leases")]

    operations = [
        migrations.AddField(
            model_name="consumer",
            name="dead_letter_channel",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="channels_app.channel",
            ),
        ),
    ]
