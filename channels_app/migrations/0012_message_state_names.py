from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('channels_app', '0011_channel_max_future_days'),
    ]

    operations = [
        migrations.AlterField(
            model_name='message',
            name='state',
            field=models.CharField(choices=[('accepted', 'Accepted'), ('dispatched', 'Dispatched'), ('cancelled', 'Cancelled')], default='accepted', max_length=12),
        ),
    ]
