from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('delivery', '0017_worker_keys'),
    ]

    operations = [
        migrations.CreateModel(
            name='Correlation',
            fields=[
                ('id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('delivery_id', models.BigIntegerField(null=True)),
                ('ok', models.BooleanField(null=True)),
                ('noted_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['noted_at'], name='correlation_age')],
            },
        ),
    ]
