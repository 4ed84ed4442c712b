"""What clients have sent since the event loop waited last, taken in together.

Requests that are like one that was read but for the text of their last message (`sample`) go in one loop: what is the same for all of
them is looked up once, and what is known of a request of so many bytes was worked out with the first (`sample.Shape`). Any other is
taken by `FastExchange.take`, or goes the general way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.outgoing import State
from berth_gateway.sample import UNPLAIN

if TYPE_CHECKING:
    from berth_gateway.fast import FastExchange
    from berth_gateway.fast_path import FastPath

_BUSY = State.BUSY
Arrival = tuple["FastExchange", bytes]


def admit(path: FastPath) -> None:
    """Each of `path.came`, in their order; one that raises ends this, and those behind it stay."""
    while path.came:
        del path.came[: _alike(path, path.came)]
        if path.came:
            exchange, data = path.came.pop(0)
            exchange._client.arrived(exchange, data)


def _alike(path: FastPath, came: list[Arrival]) -> int:  # noqa: C901 - see `fast`
    """Takes those at the start that are alike, up to the first that is not; gives how many."""
    till = path.till
    grant = till.grant
    sample = came[0][0]._form.sample
    if sample is None or sample.grant is not grant or grant is None or path.strikes or path.crowds or path.ill:
        return 0
    target, now = grant.only, path.now()
    if target is None or now >= till.until:
        return 0
    wall = path.wall()
    spot = target.spot
    idle, most = spot.idle, spot.most - spot.in_flight
    slot, form, told = till.slot, till.form, till.shows == 3
    left, tokens, money, rates = till.left, till.tokens, till.money, till.rates
    more = till.own + till.returned
    if more > till.held:
        more = till.held
    ms = int(wall * 1000)
    moment, second = path.moment if ms == path.ms else path.moment_of(ms), path.second
    ids = path.ids
    if len(ids) < len(came):
        path.make_ids()
    asks, running = path.asks, path.running
    plain: list[tuple[bytes, float]] = []
    streams: list[tuple[bytes, float]] = []
    taken = 0
    for exchange, data in came:
        sample = exchange._form.sample
        if sample is None or sample.grant is not grant:
            break
        shape = sample.shapes.get(len(data)) or sample.shape(len(data), exchange._form)
        if shape is None:
            break
        at, rear, length, before, behind, units, cost, limit, begin, middle, end = shape
        text = data[at:rear]
        if data[:at] != before or data[rear:] != behind or len(text.translate(None, UNPLAIN)) != length:
            break
        if left < 1 or tokens < units or money < cost or taken >= most or not idle:
            break
        left -= 1
        tokens -= units
        money -= cost
        if told:
            remaining, may = left + rates, tokens + more
            exchange._told = (remaining if remaining > 0 else 0), (may if may > 0 else 0)
            exchange._form_told = form
        else:
            exchange._told, exchange._lines = None, till.lines(left, tokens)
        exchange.request_id = request_id = moment + ids.pop()
        exchange._message = message = b"".join((begin, request_id, middle, text, end))
        if exchange._shape is not shape:
            exchange._shape = shape
            exchange._stream, exchange._shown, exchange._limit = sample.stream, sample.shown, limit
            exchange._units, exchange._cost = units, cost
        exchange._slot, exchange._wall, exchange._started, exchange._created = slot, wall, now, second
        exchange._upstream = upstream = idle.pop()
        exchange._grant, exchange._target = grant, target
        upstream.fast = exchange
        client = exchange._client
        client._state, client._since, client._exchange = _BUSY, now, exchange
        running.add(exchange)
        (streams if sample.stream else plain).append((request_id, wall))
        asks.append((upstream, message))
        taken += 1
    till.left, till.tokens, till.money = left, tokens, money
    spot.in_flight += taken
    if plain:
        path.opened(target.stencil, plain)
    if streams:
        path.opened(target.stream_stencil, streams)
    return taken
