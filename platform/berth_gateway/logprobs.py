"""The likelihood of tokens in /v1/completions, where an engine writes it in the form of a chat (llama.cpp does). Pure."""

from __future__ import annotations

from typing import Any


def is_chats(logprobs: object) -> bool:
    """Whether this is a chat's form: a list of tokens, each with what else might have stood there."""
    return isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list)


class Rewriter:
    """Of one choice. `text_offset` counts characters from the beginning of what was generated."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = 0

    def rewrite(self, logprobs: dict[str, Any]) -> dict[str, list[Any]]:
        """OpenAI's form for completions. What is no token is left out."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for each in logprobs["content"]:
            if not isinstance(each, dict) or not isinstance(each.get("token"), str):
                continue
            others = each.get("top_logprobs")
            others = others if isinstance(others, list) else []
            found["tokens"].append(each["token"])
            found["token_logprobs"].append(each.get("logprob"))
            found["top_logprobs"].append(
                {
                    o["token"]: o.get("logprob")
                    for o in others
                    if isinstance(o, dict) and isinstance(o.get("token"), str)
                }
            )
            found["text_offset"].append(self._at)
            self._at += len(each["token"])
        return found
