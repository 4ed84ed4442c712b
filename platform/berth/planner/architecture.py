"""A model's shape from its `config.json` lives where files are taken in; the planner only uses it."""

from berth.catalog.architecture import CHUNK_WINDOW, Family, facts_from_config, family_name

__all__ = ["CHUNK_WINDOW", "Family", "facts_from_config", "family_name"]
