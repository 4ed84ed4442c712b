"""What is booked stays as it is: the database itself refuses to change or remove it, whoever asks (threat B3).

TRUNCATE is refused as well. Only a connection that was opened with `berth.tests=on`, which test settings do, may empty the tables.
"""

from django.db import migrations

TABLES = ("billing_ledgerentry", "billing_ratedevent", "billing_statement", "billing_statementline", "billing_priceversion")

FUNCTION = """
CREATE FUNCTION berth_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' AND current_setting('berth.tests', true) = 'on' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '% on % is refused: what is booked is only ever added to', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
ROWS = """
CREATE TRIGGER {table}_immutable BEFORE UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION berth_refuse_change()
"""
WHOLE = """
CREATE TRIGGER {table}_kept BEFORE TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION berth_refuse_change()
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_periods_and_signs")]

    operations = [
        migrations.RunSQL(FUNCTION),
        *(migrations.RunSQL(statement.format(table=table)) for table in TABLES for statement in (ROWS, WHOLE)),
    ]
