from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delivery", "0024_pump_clock")]

    operations = [
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("delivery_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["due_at"], name="dead_letter_due")],
            },
        ),
    ]
