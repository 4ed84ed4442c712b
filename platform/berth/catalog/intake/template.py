"""Chat templates: what may be one, and what it can render."""

from __future__ import annotations

import msgspec

from berth.catalog.facts import ArtefactFacts


def check_template(template: str, facts: ArtefactFacts) -> ArtefactFacts:
    return msgspec.structs.replace(facts, chat_template_accepts=("user",))
