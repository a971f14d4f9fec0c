"""What is going to be sent, in the order of its time (docs/decisions/0019-the-timeline.md)."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("channels_app", "0004_audit_team_and_invitation"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="message",
            index=models.Index(fields=["channel", "due_at"], name="message_timeline"),
        ),
    ]
