from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('delivery', '0011_segment_parts'),
    ]

    operations = [
        migrations.RenameField(
            model_name='healthday',
            old_name='before',
            new_name='week_before',
        ),
    ]
