from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("channels_app", "0020_apikey_sigv4")]

    operations = [
        migrations.AddField(
            model_name="consumer",
            name="lapsed_leases",
            field=models.CharField(
                choices=[("free", "Free"), ("charged", "Charged")], default="free", max_length=7
            ),
        ),
    ]
