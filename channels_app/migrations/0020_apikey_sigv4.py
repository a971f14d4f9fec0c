from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0019_consumer_max_pumps")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="sigv4_sealed",
            field=models.BinaryField(blank=True, default=bytes),
        ),
    ]
