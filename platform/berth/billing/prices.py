"""Price versions: which one is valid for whom, when."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from berth.billing.locks import while_pricing
from berth.billing.models import PriceVersion
from berth.billing.rating import Prices
from berth.deployments.models import Deployment
from berth.orgs.models import Organisation
from berth.outbox.services import announce
from berth.web.errors import ApiError, NotFound

# The platform's price until someone sets another: 0.15, 0.075 and 0.60 of the currency per million tokens.
DEFAULT = Prices(
    input_token=Decimal("0.000000150000"),
    cached_token=Decimal("0.000000075000"),
    output_token=Decimal("0.000000600000"),
)
SINCE_EVER = datetime(2020, 1, 1, tzinfo=UTC)
NOTICE = timedelta(
    minutes=1
)  # a new price begins no sooner, so that nothing it covers can have been rated before it exists

_Subject = tuple[UUID | None, UUID | None]  # organisation, deployment


class PriceBook:
    """All versions that can concern some organisations, in memory for a batch of events."""

    def __init__(self, versions: Iterable[PriceVersion]) -> None:
        self._by_subject: dict[_Subject, list[PriceVersion]] = defaultdict(list)
        for version in sorted(versions, key=lambda version: version.valid_from):
            self._by_subject[version.org_id, version.deployment_id].append(version)

    def at(self, org_id: UUID, deployment_id: UUID, when: datetime) -> PriceVersion:
        """The version valid at that instant: the deployment's, else the organisation's, else the platform's. LookupError when
        the instant lies before every price."""
        subjects: tuple[_Subject, ...] = ((org_id, deployment_id), (org_id, None), (None, None))
        for subject in subjects:
            versions = self._by_subject.get(subject, [])
            index = bisect_right(versions, when, key=lambda version: version.valid_from)
            if index:
                return versions[index - 1]
        raise LookupError("no price was valid then")

    def schedule(self, org_id: UUID, deployment_id: UUID, now: datetime) -> list[tuple[datetime, PriceVersion]]:
        """The version valid now and those announced after it, each with the instant from which it holds. Empty without any price."""
        subjects: tuple[_Subject, ...] = ((org_id, deployment_id), (org_id, None), (None, None))
        coming = {v.valid_from for subject in subjects for v in self._by_subject.get(subject, []) if v.valid_from > now}
        found: list[tuple[datetime, PriceVersion]] = []
        for instant in (now, *sorted(coming)):
            try:
                version = self.at(org_id, deployment_id, instant)
            except LookupError:
                continue
            if not found or found[-1][1] != version:
                found.append((version.valid_from if not found else instant, version))
        return found


def prices_of(version: PriceVersion) -> Prices:
    return Prices(version.input_token, version.cached_token, version.output_token)


def book_for(org_ids: Iterable[UUID]) -> PriceBook:
    ensure_default()
    return PriceBook(PriceVersion.objects.filter(Q(org_id__in=set(org_ids)) | Q(org=None)))


def of_org(org: Organisation) -> QuerySet[PriceVersion]:
    """Every version that has ever concerned an organisation, newest first."""
    ensure_default()
    return PriceVersion.objects.filter(Q(org=org) | Q(org=None)).order_by("-id")


def ensure_default() -> None:
    """Makes the platform's first price on first use."""
    if not PriceVersion.objects.filter(org=None, deployment_id=None).exists():
        with transaction.atomic():
            while_pricing()
            if not PriceVersion.objects.filter(org=None, deployment_id=None).exists():
                _create(None, None, DEFAULT, SINCE_EVER)


def set_price(
    prices: Prices,
    *,
    org: Organisation | None = None,
    deployment: str | None = None,
    valid_from: datetime | None = None,
    now: datetime | None = None,
) -> PriceVersion:
    """A new version for the platform, an organisation, or one of its deployments (by name). It begins at `valid_from`, at least a
    minute from now, or else with the minute after next. Earlier usage keeps its price."""
    now = now or timezone.now()
    deployment_id = _deployment(org, deployment) if deployment is not None else None
    ensure_default()  # what is used before the first price of one's own has a price too
    begins = valid_from or (now + 2 * NOTICE).replace(second=0, microsecond=0)
    with transaction.atomic():
        while_pricing()
        if begins < now + NOTICE and valid_from is not None:
            raise ApiError(
                "price_too_soon",
                "A price must begin at least a minute from now: what was used before keeps its price. Choose a later instant.",
                field="valid_from",
            )
        if PriceVersion.objects.filter(org=org, deployment_id=deployment_id, valid_from=begins).exists():
            raise ApiError(
                "price_exists",
                "Another price begins at that very instant. Choose another instant.",
                field="valid_from",
                status=409,
            )
        announce("prices")  # gateways reserve at the price that will hold
        return _create(org, deployment_id, prices, begins)


def _create(org: Organisation | None, deployment_id: UUID | None, prices: Prices, begins: datetime) -> PriceVersion:
    other = PriceVersion.objects.exclude(currency=settings.CURRENCY).first()
    if other is not None:
        raise ApiError(
            "currency_differs",
            f"Prices are in {other.currency} already, and BERTH_CURRENCY says {settings.CURRENCY}. Set it back.",
            params={"currency": other.currency},
        )
    last: int | None = PriceVersion.objects.aggregate(last=Max("number"))["last"]
    return PriceVersion.objects.create(
        org=org,
        deployment_id=deployment_id,
        number=(last or 0) + 1,
        currency=settings.CURRENCY,
        input_token=prices.input_token,
        cached_token=prices.cached_token,
        output_token=prices.output_token,
        valid_from=begins,
    )


def _deployment(org: Organisation | None, name: str) -> UUID:
    if org is None:
        raise ApiError("invalid", "A deployment's price needs its organisation.", field="org")
    found = Deployment.objects.for_org(org).filter(name=name).order_by("-id").first()
    if found is None:
        raise NotFound("deployment")
    return found.pk


def current_ids(org: Organisation, now: datetime) -> set[UUID]:
    """Of each scope (platform, organisation, each deployment), the version that is valid now."""
    newest: dict[_Subject, PriceVersion] = {}
    for version in of_org(org).filter(valid_from__lte=now).order_by("valid_from"):
        newest[version.org_id, version.deployment_id] = version
    return {version.pk for version in newest.values()}
