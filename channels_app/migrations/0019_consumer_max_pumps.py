from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0018_fan_out_by_priority")]

    operations = [
        migrations.AddField(
            model_name="consumer",
            name="max_pumps",
            field=models.PositiveSmallIntegerField(default=1),
        ),
    ]
