"""A model version and its files never change (its licence is what people say of it, and may be put right); and what the store holds is counted from now on."""

from django.db import migrations

VERSIONS = """
CREATE FUNCTION catalog_version_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (to_jsonb(NEW) - 'deleted_at' - 'licence') IS DISTINCT FROM (to_jsonb(OLD) - 'deleted_at' - 'licence') THEN
        RAISE EXCEPTION 'a model version never changes: add a new one' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER version_stays BEFORE UPDATE ON catalog_modelversion
    FOR EACH ROW EXECUTE FUNCTION catalog_version_stays();
"""
FILES = """
CREATE FUNCTION catalog_file_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a file of a model version never changes: add a new version' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER file_stays BEFORE UPDATE ON catalog_artefactfile
    FOR EACH ROW EXECUTE FUNCTION catalog_file_stays();
"""
FILL = """
INSERT INTO catalog_storedfile (sha256, size, touched_at)
    SELECT sha256, max(size), now() FROM catalog_artefactfile GROUP BY sha256
    ON CONFLICT (sha256) DO NOTHING;
"""
# What recording.set_digest gives for a version of one file; all versions of old have one.
DIGESTS = """
UPDATE catalog_modelversion v SET digest = encode(sha256(
        convert_to(f.name, 'UTF8') || '\\x00'::bytea || convert_to(f.sha256 || chr(10), 'UTF8')), 'hex')
    FROM catalog_artefact a JOIN catalog_artefactfile f ON f.artefact_id = a.id
    WHERE a.version_id = v.id AND v.digest = '';
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_imports")]

    operations = [migrations.RunSQL(DIGESTS), migrations.RunSQL(VERSIONS), migrations.RunSQL(FILES), migrations.RunSQL(FILL)]
