"""The first tables."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Letter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subject", models.CharField(max_length=200)),
            ],
        ),
        migrations.CreateModel(
            name="Subscriber",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.EmailField(max_length=254, unique=True)),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("text", models.TextField()),
                ("task_id", models.CharField(max_length=36)),
                ("letter", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="letters.letter")),
                ("subscriber", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="letters.subscriber")),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("letter", "subscriber"), name="once")],
            },
        ),
    ]
