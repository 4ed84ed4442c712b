from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("privacy", "0002_padded"),
    ]

    operations = [
        migrations.AddField(
            model_name="privacypolicy",
            name="keys_apart",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
