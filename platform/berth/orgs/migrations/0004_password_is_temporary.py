from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orgs', '0003_limits'),
    ]

    operations = [
        migrations.AddField(
            model_name='user',
            name='password_is_temporary',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
