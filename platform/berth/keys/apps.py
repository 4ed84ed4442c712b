from django.apps import AppConfig


class KeysConfig(AppConfig):
    name = "berth.keys"
    label = "keys"

    def ready(self) -> None:
        from django.utils import timezone

        from berth.keys.services import revoke_personal_keys
        from berth.orgs.hooks import when_member_removed

        when_member_removed(lambda member, by: revoke_personal_keys(member, by, now=timezone.now()))
