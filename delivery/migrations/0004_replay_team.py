from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('delivery', '0003_traffic'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='replay',
            index=models.Index(fields=['team_id', 'id'], name='replay_team'),
        ),
    ]
