"""Counters and histograms in Prometheus' text form. Labels are ids and enums from closed lists, never what a client wrote."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from berth_gateway.contract import CountedBy, Outcome, UsageEvent
from berth_gateway.metrics import Counter, Gauge, Gauges, Histogram, observe, observe_all

if TYPE_CHECKING:
    from berth_gateway.stencil import Ended


class Sums(NamedTuple):
    """What several answers add up to. `latest`: when the last of them ended (Unix seconds)."""

    answers: int
    prompt: int
    cached: int
    completion: int
    first_token_seconds: float
    decode_tokens: int
    decode_seconds: float
    latest: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is documented. `labels` have values from closed lists: deployment ids, outcomes, codes."""

    name: str
    kind: type[Counter | Gauge | Gauges | Histogram]
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric(
        "berth_gateway_requests_total",
        Counter,
        "Accepted requests, by how they ended.",
        ("deployment", "endpoint", "outcome"),
    ),
    Metric("berth_gateway_refused_total", Counter, "Requests answered with an error by the gateway.", ("code",)),
    Metric("berth_gateway_tokens_total", Counter, "Tokens metered.", ("deployment", "kind")),
    Metric("berth_gateway_first_token_seconds", Histogram, "Time to the first token.", ("deployment",)),
    Metric("berth_gateway_request_seconds", Histogram, "Time to the last byte.", ("deployment",)),
    Metric("berth_gateway_responses_total", Counter, "Accepted requests, by class of status.", ("deployment", "class")),
    Metric(
        "berth_gateway_output_token_seconds",
        Histogram,
        "Mean time for each token behind the first of an answer.",
        ("deployment",),
    ),
    Metric("berth_gateway_queue_seconds", Histogram, "Time until a request went to a replica.", ("deployment",)),
    Metric("berth_gateway_shadows_total", Counter, "Copies of requests, by how they ended.", ("deployment", "outcome")),
    Metric("berth_gateway_retries_total", Counter, "Requests sent to a replica a second time.", ("reason",)),
    Metric(
        "berth_gateway_usage_breaches_total",
        Counter,
        "Answers whose engine figures did not fit what was relayed.",
        ("deployment",),
    ),
    Metric("berth_gateway_counted_total", Counter, "Usage events, by where their counts come from.", ("by",)),
    Metric("berth_gateway_snapshots_total", Counter, "Snapshots offered, by verdict.", ("verdict",)),
    Metric("berth_gateway_usage_shipped_total", Counter, "Usage events written to the stream, repeats included."),
    Metric("berth_gateway_valkey_failures_total", Counter, "Attempts that Valkey did not answer.", ("job",)),
    Metric("berth_gateway_records_total", Counter, "Inference records: shipped, or dropped and why.", ("outcome",)),
    Metric("berth_gateway_traces_total", Counter, "Traced requests: exported, failed or dropped.", ("outcome",)),
    Metric("berth_gateway_cut_total", Counter, "Running requests that the gateway ended.", ("reason",)),
    Metric("berth_gateway_in_flight", Gauge, "Accepted requests that run."),
    Metric("berth_gateway_queued", Gauge, "Requests that wait for a replica."),
    Metric("berth_gateway_reserved_tokens", Gauge, "Tokens that running requests may use at most."),
    Metric("berth_gateway_deployment_in_flight", Gauges, "Requests that are with a replica now.", ("deployment",)),
    Metric(
        "berth_gateway_replica_up",
        Gauges,
        "1: it answers; 0: it failed and rests or is tried.",
        ("deployment", "replica"),
    ),
    Metric("berth_gateway_connections", Gauge, "Open client connections."),
    Metric("berth_gateway_limits_waiting", Gauge, "Requests that wait for a share of a limit or budget."),
    Metric("berth_gateway_limits_contact", Gauge, "1: limits and budgets are shared through Valkey; 0: it is away."),
    Metric("berth_gateway_spool_pending", Gauge, "Usage events not yet known to be in PostgreSQL."),
    Metric("berth_gateway_spool_failures", Gauge, "Writes to the spool that failed since the start."),
    Metric("berth_gateway_spool_torn", Gauge, "Damaged spool records met at start."),
    Metric("berth_gateway_spool_recovered", Gauge, "Requests settled at start, because the gateway was killed."),
    Metric("berth_gateway_snapshot_version", Gauge, "Version of the applied snapshot."),
    Metric(
        "berth_gateway_snapshot_age_seconds", Gauge, "Seconds since Valkey last confirmed the snapshot; -1 without one."
    ),
)


class _Usual:
    """What each request of one deployment and endpoint is counted by, found once."""

    __slots__ = ("cached", "completion", "duration", "first", "output", "prompt", "reasoning", "ways")

    def __init__(self, telemetry: Telemetry, deployment: str) -> None:
        tokens = telemetry.tokens
        self.prompt, self.completion = tokens.cell(deployment, "prompt"), tokens.cell(deployment, "completion")
        self.cached, self.reasoning = tokens.cell(deployment, "cached"), tokens.cell(deployment, "reasoning")
        self.duration = telemetry.duration.cell(deployment)
        self.first: tuple[list[int], list[float]] | None = None
        self.output: tuple[list[int], list[float]] | None = None
        self.ways: dict[tuple[int, str, str], tuple[list[float], ...]] = {}  # status, outcome, counted by


class Telemetry:
    """Everything the gateway counts. `gauges` and `families` read the gauges' numbers when /metrics is asked for."""

    def __init__(
        self,
        gauges: Mapping[str, Callable[[], float]],
        families: Mapping[str, Callable[[], Mapping[tuple[str, ...], float]]],
    ) -> None:
        known = {metric.name: metric for metric in METRICS}
        self._usual: dict[tuple[str, str], _Usual] = {}

        def counter(name: str) -> Counter:
            metric = known[f"berth_gateway_{name}"]
            return Counter(metric.name, metric.help, metric.labels)

        def histogram(name: str) -> Histogram:
            metric = known[f"berth_gateway_{name}"]
            return Histogram(metric.name, metric.help, metric.labels)

        self.requests = counter("requests_total")
        self.refused = counter("refused_total")
        self.tokens = counter("tokens_total")
        self.first_token = histogram("first_token_seconds")
        self.duration = histogram("request_seconds")
        self.responses = counter("responses_total")
        self.output_token = histogram("output_token_seconds")
        self.queue = histogram("queue_seconds")
        self.shadows = counter("shadows_total")
        self.retries = counter("retries_total")
        self.breaches = counter("usage_breaches_total")
        self.counted_by = counter("counted_total")
        self.snapshots = counter("snapshots_total")
        self.shipped = counter("usage_shipped_total")
        self.link_failures = counter("valkey_failures_total")
        self.cut = counter("cut_total")
        self.traces = counter("traces_total")
        self.records = counter("records_total")
        self._gauges: list[Gauge | Gauges] = [
            Gauge(metric.name, metric.help, gauges[metric.name]) for metric in METRICS if metric.kind is Gauge
        ]
        self._gauges += [
            Gauges(metric.name, metric.help, metric.labels, families[metric.name])
            for metric in METRICS
            if metric.kind is Gauges
        ]

    def settled(self, event: UsageEvent, *, breach: bool) -> None:
        """The end of a request."""
        deployment, status = event.deployment_id, event.status
        usual = self._usual.get((deployment, event.endpoint))
        if usual is None:
            usual = self._usual[deployment, event.endpoint] = _Usual(self, deployment)
        way = (status, event.outcome._value_, event.counted_by._value_)
        cells = usual.ways.get(way)
        if cells is None:
            cells = usual.ways[way] = (
                self.responses.cell(deployment, f"{status // 100}xx"),
                self.requests.cell(deployment, event.endpoint, event.outcome),
                self.counted_by.cell(event.counted_by),
            )
        for cell in cells:
            cell[0] += 1
        usual.prompt[0] += event.prompt_tokens
        usual.completion[0] += event.completion_tokens
        usual.cached[0] += event.cached_tokens
        usual.reasoning[0] += event.reasoning_tokens
        observe(usual.duration, event.duration_ms / 1000)
        if event.first_token_ms is not None:
            if usual.first is None:
                usual.first = self.first_token.cell(deployment)
            observe(usual.first, event.first_token_ms / 1000)
            if event.completion_tokens > 1:
                if usual.output is None:
                    usual.output = self.output_token.cell(deployment)
                decode = max(0.0, event.duration_ms - event.first_token_ms) / 1000
                observe(usual.output, decode / (event.completion_tokens - 1))
        if breach:
            self.breaches.add(deployment)

    def ended_well(self, deployment: str, endpoint: str, ended: Sequence[Ended]) -> Sums:
        """The same for requests that were answered to the end at once, from a replica that was free. Gives what they add up to."""
        usual = self._usual.get((deployment, endpoint))
        if usual is None:
            usual = self._usual[deployment, endpoint] = _Usual(self, deployment)
        if usual.first is None:
            usual.first = self.first_token.cell(deployment)
        _, walls, lasted, firsts, prompts, cacheds, completions, reasonings = zip(*ended, strict=True)
        count, prompt, cached, completion = len(ended), sum(prompts), sum(cacheds), sum(completions)
        latest = walls[-1] + lasted[-1] / 1e6
        observe_all(usual.duration, lasted)
        to_first = observe_all(usual.first, firsts)
        decoding, nothing, single = 0, completions.count(0), completions.count(1)
        decoded = completion - count + nothing
        spans: Sequence[float] = (0.0,) * (count - nothing - single)
        if firsts != lasted:  # otherwise these are answers in one piece, of which no token took time of its own
            several = [(last - first, tokens - 1) for _, _, last, first, _, _, tokens, _ in ended if tokens > 1]
            decoding = sum(span for span, _ in several)
            spans = [span / tokens for span, tokens in several]
        if spans:
            if usual.output is None:
                usual.output = self.output_token.cell(deployment)
            observe_all(usual.output, spans)
        usual.prompt[0] += prompt
        usual.cached[0] += cached
        usual.completion[0] += completion
        usual.reasoning[0] += sum(reasonings)
        self.responses.add(deployment, "2xx", by=count)
        self.requests.add(deployment, endpoint, Outcome.OK, by=count)
        self.counted_by.add(CountedBy.ENGINE, by=count)
        return Sums(count, prompt, cached, completion, to_first / 1e6, decoded, decoding / 1e6, latest)

    def keep_only(self, deployments: Container[str]) -> None:
        """Forgets what was counted for deployments that are gone, so that labels do not pile up."""
        self._usual.clear()
        for metric in vars(self).values():
            if isinstance(metric, Counter | Histogram) and metric.labels[:1] == ("deployment",):
                metric.forget(lambda labels: labels[0] not in deployments)

    def text(self) -> bytes:
        out: list[str] = []
        metrics = [m for m in vars(self).values() if isinstance(m, Counter | Histogram)]
        for metric in [*metrics, *self._gauges]:
            out += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        return ("\n".join(out) + "\n").encode()
