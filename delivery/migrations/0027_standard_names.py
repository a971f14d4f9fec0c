from typing import Any

from django.db import migrations, models

RENAMED = {"steward": "maintenance"}
ACTIONS = {
    "lane.park": "ordering_key.pause",
    "lane.resume": "ordering_key.resume",
    "lane.skip": "ordering_key.skip",
}


def rename(apps: Any, schema_editor: Any) -> None:
    _rename(apps, RENAMED, ACTIONS)


def undo(apps: Any, schema_editor: Any) -> None:
    _rename(
        apps,
        {new: old for old, new in RENAMED.items()},
        {new: old for old, new in ACTIONS.items()},
    )


def _rename(apps: Any, kinds: dict[str, str], actions: dict[str, str]) -> None:
    for old, new in kinds.items():
        apps.get_model("delivery", "PumpSlot").objects.filter(kind=old).update(kind=new)
    for old, new in actions.items():
        apps.get_model("channels_app", "AuditEntry").objects.filter(action=old).update(action=new)


class Migration(migrations.Migration):
    dependencies = [
        ("delivery", "0026_queues"),
        ("channels_app", "0023_consumer_retry_overrides"),
    ]

    operations = [
        migrations.RenameField("lane", "parked_at", "paused_at"),
        migrations.AlterField(
            model_name="pumpslot",
            name="kind",
            field=models.CharField(
                choices=[("pump", "Pump"), ("maintenance", "Maintenance"), ("web", "Web")],
                default="pump",
                max_length=12,
            ),
        ),
        migrations.RunPython(rename, undo),
    ]
