import channels_app.models.base
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('channels_app', '0009_inbound'),
    ]

    operations = [
        migrations.AddField(
            model_name='channel',
            name='reorder_window_ms',
            field=models.PositiveIntegerField(default=500),
        ),
        migrations.CreateModel(
            name='EarlyNumber',
            fields=[
                ('id', channels_app.models.base.TimeOrderedKey(primary_key=True, serialize=False)),
                ('sequence_id', models.BigIntegerField()),
                ('number', models.BigIntegerField()),
                ('until', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('sequence_id', 'number'), name='one_early_number')],
            },
        ),
        migrations.CreateModel(
            name='Sequence',
            fields=[
                ('id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('ordering_key', channels_app.models.base.ExactCharField(max_length=255)),
                ('expected', models.BigIntegerField(default=1)),
                ('epoch', models.PositiveIntegerField(default=0)),
                ('last_message_id', models.BigIntegerField(default=0)),
                ('skipped_count', models.BigIntegerField(default=0)),
                ('skipped_from', models.BigIntegerField(null=True)),
                ('skipped_to', models.BigIntegerField(null=True)),
                ('skipped_at', models.DateTimeField(null=True)),
                ('touched_at', models.DateTimeField()),
                ('channel', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='channels_app.channel')),
                ('producer', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='channels_app.producer')),
            ],
            options={
                'indexes': [models.Index(fields=['touched_at'], name='sequence_touched')],
            },
        ),
    ]
