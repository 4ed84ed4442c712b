"""Answers about the time to the first token: one request alone, and under load as a range from the queue simulation."""

from __future__ import annotations

import re

from berth.planner.answers import Answer, Sections, Unanswerable, answers, placement_of
from berth.planner.measurements import Measurement
from berth.planner.placement import Placement
from berth.planner.pool import cache_tokens, kv_pool, vllm_limits
from berth.planner.queueing import BURST, STEADY, Server, first_token, most_users, simulate
from berth.planner.serving import Load

SPREAD = 0.25  # how far the ends of the range are widened: lengths, clients and clocks vary


def server_of(place: Placement, point: Measurement) -> Server:
    limits = vllm_limits(place.gpu)
    told = re.search(r"utilization[ =]+(0\.\d+)", point.quote)
    pool = kv_pool(place, limits, float(told.group(1)) if told else place.value("memory_share"))
    if pool <= 0:
        raise Unanswerable("by the planner's own estimate the model does not fit there")
    most = limits.sequences if place.engine.startswith("vllm") else int(place.value("max_sequences"))
    budget = max(limits.batched_tokens, int(place.value("token_budget")))
    return Server(float(cache_tokens(place, pool)), most, budget)


@answers("ttft_ms", "ttft_mean_ms", "ttft_median_ms", "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms")
def _ttft(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    if point.input is None:
        raise Unanswerable("the point does not say its prompt length")
    if point.unlimited:
        raise Unanswerable("under unlimited load the time to the first token has no bound")
    users = float(point.concurrency or 1)
    if users <= 1:
        return Answer(1e3 * first_token(place, point.input))
    load = Load(point.input, float(point.output or 1), users)
    server = server_of(place, point)
    calm = simulate(place, load, server, start=STEADY)
    storm = simulate(place, load, server, start=BURST, waves=1.0)
    later = simulate(place, load, server, start=BURST, waves=3.0)
    told = re.search(r"p(\d\d)", point.metric)
    if told and told.group(1) != "50":
        share = int(told.group(1)) / 100
        low, high, weight = calm.quantile(share), storm.quantile(share), place.value("burst_tail")
    elif "median" in point.metric or told:
        low, high, weight = calm.quantile(0.5), storm.quantile(0.5), place.value("burst_median")
    else:
        low, high, weight = calm.mean, storm.mean, place.value("burst_mean")
    best = low ** (1 - weight) * high**weight
    share = int(told.group(1)) / 100 if told else 0.5
    others = [found.mean if not told else found.quantile(share) for found in (storm, later)]
    least, most = min(low, high, *others), max(low, high, *others)
    return Answer(1e3 * best, 1e3 * least / (1 + SPREAD), 1e3 * most * (1 + SPREAD))


@answers("max_users_at_slo")
def _users(point: Measurement, sections: Sections) -> Answer:
    place = placement_of(point, sections)
    if point.input is None or point.output is None:
        raise Unanswerable("the point does not say its prompt and reply lengths")
    first = re.search(r"p(\d\d) TTFT (\d+) ms", point.quote)
    token = re.search(r"median ITL (\d+) ms", point.quote)
    if not first or not token:
        raise Unanswerable("the point does not say its service level")
    load, server = Load(point.input, point.output, 1.0), server_of(place, point)
    limit, share, slowest = int(first.group(2)) / 1e3, int(first.group(1)) / 100, int(token.group(1)) / 1e3
    found = [
        most_users(place, load, server, first=limit, share=share, token=slowest, start=start)
        for start in (BURST, STEADY)
    ]
    tested = 512  # as many clients as any of the pages tries
    low, high = (min(tested, value) for value in found)
    return Answer(float(low), low / (1 + SPREAD), high * (1 + SPREAD))
