from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('channels_app', '0010_sequences'),
    ]

    operations = [
        migrations.AddField(
            model_name='channel',
            name='max_future_days',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
    ]
