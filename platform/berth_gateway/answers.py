"""What replicas have answered since the event loop waited last, taken in together.

Plain answers of a form that is known (`answer_form`), to requests of the key and deployment that `till` is open for, go in one loop, in
which they are accounted for; any other is taken by `UsualAnswer.take_in`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.answer_form import check_text, decode
from berth_gateway.route import MAX_IDLE
from berth_gateway.usual import UNUSUAL

if TYPE_CHECKING:
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.fast_path import FastPath
    from berth_gateway.stencil import Ended
    from berth_gateway.upstream import Upstream

Answer = tuple["UsualAnswer", "Upstream", bytes]


def settle(path: FastPath) -> None:
    """Each of `path.answers`, in their order; one that raises ends this, and those behind it stay."""
    while path.answers:
        del path.answers[: _alike(path, path.answers)]
        if path.answers:
            exchange, upstream, data = path.answers.pop(0)
            if upstream.fast is exchange:
                exchange.take_in(data)
            else:
                upstream.came(data)  # nobody has asked for it


def _alike(path: FastPath, answers: list[Answer]) -> int:  # noqa: C901 - see `fast`
    """Takes those at the start that are alike, up to the first that is not; gives how many."""
    till = path.till
    grant = till.grant
    if grant is None or path.strikes or path.crowds or path.ill or path.draining or grant.generation != path.generation:
        return 0
    target = grant.only
    if target is None or answers[0][0]._grant is not grant:
        return 0
    spot = target.spot
    form, head = spot.answer, spot.form
    if form is None or head is None:
        return 0
    first, second, third, closing, of_closing, last, of_last, before, around, behind, behind_all = form.parts
    to_id, from_id, to_time, from_time, to_text, from_end = form.places
    around += grant.reply_size
    idle, slot, now = spot.idle, till.slot, path.now()
    context, input_price, cached_price = grant.context, grant.input_price, grant.cached_price
    output_price = grant.output_price
    running, replies = path.running, path.replies
    ended: list[Ended] = []
    back = freed = spent = 0
    form_told, reply = None, b""
    try:
        for exchange, upstream, data in answers:
            if (
                exchange._grant is not grant
                or upstream.fast is not exchange
                or exchange._slot != slot
                or exchange._part
            ):
                break

            # Whether it is what it should be
            size, at = len(data), head.head_size
            if size != head.size or data[:at] != head.head:
                if head.body(data) is None or head.size != size:
                    break
                at = head.head_size
            begins, ends = at + to_text, size - from_end
            if data[ends : ends + of_closing] != closing or ends < begins:
                ends = data.rfind(closing, begins)
                from_end = size - ends
            if (
                data[at : at + to_id] != first or data[at + from_id : at + to_time] != second or data[at + from_time : begins] != third
                or data[-of_last:] != last or ends < 0
            ):  # fmt: skip
                found = form.find(data, at)
                if found is None:
                    break
                form, form_told = found, None
                first, second, third, closing, of_closing, last, of_last, before, around, behind, behind_all = (
                    form.parts
                )
                to_id, from_id, to_time, from_time, to_text, from_end = form.places
                around += grant.reply_size
                begins, ends = at + to_text, size - from_end
            answer = decode(data[at:])
            text = data[begins:ends]
            if answer.error is not None:
                break
            if 34 in text:
                check_text(data[begins - 1 : ends + 1])
            if not data.isascii():
                data.decode()  # texts go on as they are
            usage = answer.usage
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            if prompt is None or completion is None or prompt > context or not 1 <= completion <= exchange._limit:
                break
            of_prompt, of_completion = usage.prompt_tokens_details, usage.completion_tokens_details
            if of_prompt is None and of_completion is None:
                if prompt < 0:
                    break
                cached = reasoning = 0
                tail = behind % (prompt, completion, prompt + completion)
                spent += completion * output_price + prompt * input_price
            else:
                cached = (0 if of_prompt is None else of_prompt.cached_tokens) or 0
                reasoning = (0 if of_completion is None else of_completion.reasoning_tokens) or 0
                if not (0 <= cached <= prompt and 0 <= reasoning <= completion):
                    break
                tail = behind_all % (prompt, completion, prompt + completion, cached, reasoning)
                spent += completion * output_price + (prompt - cached) * input_price + cached * cached_price

            # It is whole, and good
            request_id, lasts = exchange.request_id, now - exchange._started
            length, told = around + len(text) + len(tail), exchange._told
            if told is None:
                begin = (grant.reply + before) % (
                    length, request_id, exchange._lines, int(lasts * 1000), request_id, exchange._created
                )  # fmt: skip
            else:
                if exchange._form_told is not form_told:
                    form_told = exchange._form_told
                    reply = grant.reply_of(form_told) + before
                left, tokens = told
                begin = reply % (length, request_id, left, tokens, int(lasts * 1000), request_id, exchange._created)
            replies.append((exchange._client, b"".join((begin, text, tail))))
            back += exchange._units - prompt - completion
            freed += exchange._cost
            lasted = int(lasts * 1e6 + 0.5)
            ended.append((request_id, exchange._wall, lasted, lasted, prompt, cached, completion, reasoning))
            running.discard(exchange)
            exchange._grant = exchange._target = exchange._upstream = upstream.fast = None
            if upstream._paused:
                upstream.resume()
            if len(idle) < MAX_IDLE:
                idle.append(upstream)
            else:
                upstream.discard()
    except (*UNUSUAL, UnicodeDecodeError):
        pass  # the one behind them is another
    taken = len(ended)
    if taken:
        till.back += back
        till.returned += back
        till.ended += taken
        till.freed += freed
        till.spent += spent
        spot.answer, spot.unlike = form, 0
        spot.in_flight -= taken
        path.closed(target.stencil, ended)
    return taken
