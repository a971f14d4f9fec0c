from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delivery", "0010_usage"),
    ]

    operations = [
        migrations.AddField(
            model_name="segment",
            name="parts",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="segment",
            name="byte_count",
            field=models.PositiveBigIntegerField(default=0),
        ),
    ]
