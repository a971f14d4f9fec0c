from django.core.management import call_command
from django.db import migrations


def make(apps, schema_editor):
    """The table of the cache that all processes share (CACHES in broker_site/settings.py)."""
    call_command("createcachetable", database=schema_editor.connection.alias, verbosity=0)


def drop(apps, schema_editor):
    schema_editor.execute("DROP TABLE IF EXISTS hookstation_cache")


class Migration(migrations.Migration):

    dependencies = [
        ('channels_app', '0002_channel_pruned_to'),
    ]

    operations = [
        migrations.RunPython(make, drop),
    ]
