"""The order of a response's events that clients count on: each thing is opened once, before what belongs to it, and closed once. Pure.

llama.cpp leaves out what opens a response, or says it again with every piece, where a token is only a part of a character;
clients that keep a picture of the response then look for an item that nobody told them of, or lose it at the second opening.
"""

from __future__ import annotations

from typing import Any

Event = tuple[str, dict[str, Any]]

BEGIN = ("response.created", "response.in_progress")
_ITEM = "response.output_item."
_PART = "response.content_part."
_TEXTS = {  # events of a text, the part that it is in, and the item that this is in
    "response.output_text.": ("output_text", "message"),
    "response.refusal.": ("refusal", "message"),
    "response.reasoning_text.": ("reasoning_text", "reasoning"),
}
_FIELDS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}  # where a part's text stands
_EMPTY: dict[str, dict[str, Any]] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
    "reasoning_text": {"type": "reasoning_text", "text": ""},
}
_EMPTY_ITEMS: dict[str, dict[str, Any]] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": [], "content": []},
    "function_call": {"arguments": ""},
}


class _Item:
    __slots__ = ("closed", "parts", "place", "said")

    def __init__(self, place: int) -> None:
        self.place = place
        self.closed = False
        self.parts: dict[int, bool] = {}  # whether it is closed, by its index
        self.said = False  # some of its arguments


def item_key(members: dict[str, Any]) -> str:
    """What events of the same item have in common. llama.cpp's calls have only the id of the call."""
    item = members.get("item") or {}
    return str(members.get("item_id") or item.get("id") or item.get("call_id") or "")


class ResponseOrder:
    """What a client has been told so far. Events come with all their members but `output_index`: an item's place is given here, by
    the order in which clients hear of items, because that is where they keep them."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}

    def put(self, kind: str, members: dict[str, Any]) -> list[Event]:
        """The events to send for one of the engine's: what it takes for granted before it; none, if it was said already."""
        if kind.startswith(_ITEM):
            return self._item(kind, members)
        key = item_key(members)
        if kind.startswith(_PART):
            part = members.get("part")
            if not isinstance(part, dict):
                return []
            return self._part(kind, key, members, part)
        for prefix, (part_type, item_type) in _TEXTS.items():
            if kind.startswith(prefix):
                out = self._open_item(key, item_type)
                out += self._open_part(key, members["content_index"], part_type)
                return [*out, (kind, self._placed(key, members))]
        item_type = "function_call" if kind.startswith("response.function_call_arguments.") else "reasoning"
        out = self._open_item(key, item_type)
        self._items[key].said = True
        return [*out, (kind, self._placed(key, members))]

    def close(self, output: list[Any]) -> list[Event]:
        """At the end: whatever of the output a client has not been told in full."""
        out: list[Event] = []
        for item in output:
            if item.get("type") in _EMPTY_ITEMS:
                out += self._item(_ITEM + "done", {"item": item})
        return out

    # Items

    def _item(self, kind: str, members: dict[str, Any]) -> list[Event]:
        item, key = members["item"], item_key(members)
        known = self._items.get(key)
        if kind.endswith(".added"):
            return [] if known is not None else self._open_item(key, item["type"], item)
        if known is not None and known.closed:
            return []
        out = self._open_item(key, item["type"], item)
        known = self._items[key]
        for number, part in enumerate(item.get("content") or ()):
            if isinstance(part, dict) and part.get("type") in _EMPTY:
                out += self._whole_part(key, number, part)
        if item["type"] == "function_call" and not known.said:
            out += self._arguments(key, str(item.get("arguments") or ""))
        known.closed = True
        return [*out, (kind, self._placed(key, {**members, "item": {"id": key, **item}}))]

    def _placed(self, key: str, members: dict[str, Any]) -> dict[str, Any]:
        return {**members, "output_index": self._items[key].place}

    def _open_item(self, key: str, item_type: str, item: dict[str, Any] | None = None) -> list[Event]:
        if key in self._items:
            return []
        place = len(self._items)
        self._items[key] = _Item(place)
        opened = {"id": key, "type": item_type, **(item or {}), **_EMPTY_ITEMS[item_type], "status": "in_progress"}
        return [(_ITEM + "added", {"output_index": place, "item": opened})]

    def _arguments(self, key: str, arguments: str) -> list[Event]:
        self._items[key].said = True
        where = {"item_id": key, "output_index": self._items[key].place}
        kind = "response.function_call_arguments."
        delta = [(kind + "delta", {**where, "delta": arguments})] if arguments else []
        return [*delta, (kind + "done", {**where, "arguments": arguments})]

    # Parts of items

    def _part(self, kind: str, key: str, members: dict[str, Any], part: dict[str, Any]) -> list[Event]:
        part_type, number = part.get("type"), members["content_index"]
        if part_type not in _EMPTY:
            return []
        item_type = "reasoning" if part_type == "reasoning_text" else "message"
        out = self._open_item(key, item_type)
        if kind.endswith(".added"):
            return out + self._open_part(key, number, part_type)
        return out + self._whole_part(key, number, part)

    def _open_part(self, key: str, number: int, part_type: str) -> list[Event]:
        item = self._items[key]
        if number in item.parts:
            return []
        item.parts[number] = False
        where = {"item_id": key, "output_index": item.place, "content_index": number}
        return [(_PART + "added", {**where, "part": _EMPTY[part_type]})]

    def _whole_part(self, key: str, number: int, part: dict[str, Any]) -> list[Event]:
        """A part at its end: with its text, if nothing of it has been sent."""
        item, part_type = self._items[key], part["type"]
        if item.parts.get(number):
            return []
        where = {"item_id": key, "output_index": item.place, "content_index": number}
        out: list[Event] = []
        if number not in item.parts:
            out = self._open_part(key, number, part_type)
            name = _FIELDS[part_type]
            text = str(part.get(name) or "")
            prefix = next(prefix for prefix, (each, _) in _TEXTS.items() if each == part_type)
            more: dict[str, Any] = {"logprobs": []} if part_type == "output_text" else {}
            if text:
                out.append((prefix + "delta", {**where, "delta": text, **more}))
            out.append((prefix + "done", {**where, name: text, **more}))
        item.parts[number] = True
        return [*out, (_PART + "done", {**where, "part": {**_EMPTY[part_type], **part}})]
