from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('channels_app', '0008_channel_ordering'),
    ]

    operations = [
        migrations.AddField(
            model_name='consumer',
            name='inbound_digest',
            field=models.CharField(editable=False, max_length=64, null=True, unique=True),
        ),
        migrations.AddField(
            model_name='consumer',
            name='inbound_sealed',
            field=models.BinaryField(default=bytes),
        ),
    ]
