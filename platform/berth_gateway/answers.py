"""What replicas have answered since the event loop waited last, taken in together.

Plain answers of a form that is known (`answer_form`), to requests of the key and deployment that `till` is open for, go in one loop, in
which they are accounted for; any other is taken by `UsualAnswer.take_in`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from berth_gateway.answer_form import check_text, decode_usage
from berth_gateway.route import MAX_IDLE
from berth_gateway.usual import UNUSUAL

if TYPE_CHECKING:
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.fast_path import FastPath
    from berth_gateway.stencil import Ended
    from berth_gateway.upstream import Upstream

Answer = tuple["UsualAnswer", "Upstream", bytes]
USAGE = (
    b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
    b'"completion_tokens_details":{"reasoning_tokens":%d}}}'
)
PLAIN_USAGE = USAGE.replace(b'_tokens":%d}', b'_tokens":0}')


def settle(path: FastPath, answers: list[Answer]) -> None:
    """Each of them, in their order. What one of them raises is told when all have had their turn."""
    at, size = 0, len(answers)
    try:
        while at < size:
            at += _alike(path, answers, at)
            if at < size:
                exchange, upstream, data = answers[at]
                at += 1
                if upstream.fast is exchange:
                    exchange.take_in(data)
                else:
                    upstream.came(data)  # it is another's by now
    finally:
        if at < size:
            settle(path, answers[at:])


def _alike(path: FastPath, answers: list[Answer], start: int) -> int:  # noqa: C901 - see `fast`
    """Takes those from `start` on that are alike, up to the first that is not; gives how many."""
    till = path.till
    grant = till.grant
    if grant is None or path.strikes or path.crowds or path.ill or path.draining or grant.generation != path.generation:
        return 0
    target = grant.only
    if target is None:
        return 0
    spot = target.spot
    form, head = spot.answer, spot.form
    if form is None or head is None:
        return 0
    idle, slot, now = spot.idle, till.slot, path.now()
    context, input_price, cached_price, output_price = (
        grant.context, grant.input_price, grant.cached_price, grant.output_price
    )  # fmt: skip
    running, replies = path.running, path.replies
    ended: list[Ended] = []
    back = freed = spent = 0
    form_told, reply_form = b"", b""
    try:
        for exchange, upstream, data in islice(answers, start, None):
            if (
                exchange._grant is not grant or upstream.fast is not exchange or exchange._slot != slot
                or exchange._stream or exchange._part
            ):  # fmt: skip
                break

            # Whether it is what it should be
            size = len(data)
            at = head.head_size
            if size != head.size or data[:at] != head.head:
                if head.body(data) is None:
                    break
                at = head.head_size
                if head.size != size:
                    break
            found = form.opens(data, at)
            if found is None:
                break
            begins = found.end()
            ends = data.rfind(form.closing, begins)
            if ends < 0:
                other = form.other
                found = None if other is None else other.opens(data, at)
                if other is None or found is None:
                    break
                begins = found.end()
                ends = data.rfind(other.closing, begins)
                if ends < 0:
                    break
                spot.answer = form = other
            rest = data[ends + len(form.closing) :]
            last = len(form.last)
            if rest[-last:] != form.last:
                break
            usage = decode_usage(rest[:-last])
            check_text(data[begins - 1 : ends + 1])
            if not data.isascii():
                data.decode()  # texts go on as they are
            text = data[begins:ends]
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            cached = reasoning = 0
            if usage.prompt_tokens_details is not None:
                cached = usage.prompt_tokens_details.cached_tokens or 0
            if usage.completion_tokens_details is not None:
                reasoning = usage.completion_tokens_details.reasoning_tokens or 0
            if prompt is None or completion is None or not (
                0 <= cached <= prompt <= context and 1 <= completion <= exchange._limit and 0 <= reasoning <= completion
            ):  # fmt: skip
                break

            # It is whole, and good
            request_id, wall = exchange.request_id, exchange._wall
            seconds = now - exchange._started
            if cached or reasoning:
                tail = USAGE % (prompt, completion, prompt + completion, cached, reasoning)
            else:
                tail = PLAIN_USAGE % (prompt, completion, prompt + completion)
            length = grant.reply_size + len(form.before) + len(text) + len(form.behind) + len(tail)
            if exchange._told is None:
                begin = grant.reply % (
                    length, request_id, exchange._lines, int(seconds * 1000), request_id, exchange._created
                )  # fmt: skip
            else:
                if exchange._form_told is not form_told:
                    form_told = exchange._form_told
                    reply_form = grant.reply_of(form_told)
                left, tokens = exchange._told
                begin = reply_form % (
                    length, request_id, left, tokens, int(seconds * 1000), request_id, exchange._created
                )  # fmt: skip
            replies.append((exchange._client, b"".join((begin, form.before, text, form.behind, tail))))
            back += exchange._units - prompt - completion
            freed += exchange._cost
            spent += completion * output_price + (prompt - cached) * input_price + cached * cached_price
            lasted = int(seconds * 1e6 + 0.5)
            ended.append((request_id, wall, lasted, lasted, prompt, cached, completion, reasoning))
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
        spot.unlike = 0
        spot.in_flight -= taken
        path.closed(target.stencil, ended)
    return taken
