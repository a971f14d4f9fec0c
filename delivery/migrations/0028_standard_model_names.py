"""Models get the field's terms; their rows stay."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delivery", "0027_standard_names"), ("channels_app", "0025_standard_model_names")]

    operations = [
        migrations.RenameModel("Lane", "OrderingKey"),
        migrations.RenameIndex("OrderingKey", new_name="key_of_consumer", old_name="lane_of_consumer"),
        migrations.RenameModel("LaneWaiter", "OrderingWaiter"),
        migrations.RemoveConstraint("OrderingWaiter", "one_waiter_per_place"),
        migrations.RenameField("OrderingWaiter", "lane_id", "key_number"),
        migrations.AddConstraint(
            "OrderingWaiter",
            models.UniqueConstraint(fields=["key_number", "place"], name="one_waiter_per_place"),
        ),
        migrations.RenameModel("Standing", "HealthStatus"),
        migrations.RenameModel("Notice", "Notification"),
        migrations.RenameModel("Pruned", "RetentionMark"),
        migrations.RenameModel("EarlyAck", "PendingAck"),
        migrations.RenameModel("AccountingReport", "ReconciliationReport"),
    ]
