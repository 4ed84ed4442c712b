"""Prices, the ledger and statements. Amounts are exact: NUMERIC(38,12) of the currency's main unit, never a float."""

from __future__ import annotations

from decimal import Decimal

from django.db import models

from berth.orgs.tenancy import OrgOwned, new_id


def money_field() -> models.DecimalField[Decimal, Decimal]:
    return models.DecimalField(max_digits=38, decimal_places=12)


class Unit(models.TextChoices):
    """What is priced. Input excludes cached tokens; output includes reasoning."""

    INPUT_TOKEN = "input_token"
    CACHED_TOKEN = "cached_token"
    OUTPUT_TOKEN = "output_token"


class PriceVersion(models.Model):
    """Prices valid from an instant until the next version of the same subject. Never edited once published.

    `deployment_id` null is the platform's default price; `org` null means every organisation.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    org = models.ForeignKey("orgs.Organisation", null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    deployment_id = models.UUIDField(null=True, blank=True)
    number = models.PositiveIntegerField()
    currency = models.CharField(max_length=3)
    input_token = money_field()  # per token
    cached_token = money_field()
    output_token = money_field()
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(input_token__gte=0, cached_token__gte=0, output_token__gte=0),
                name="price_not_negative",
            ),
            models.UniqueConstraint(
                fields=["org", "deployment_id", "valid_from"], nulls_distinct=False, name="price_one_at_a_time"
            ),
        ]

    def __str__(self) -> str:
        return f"price {self.number}"


class LedgerAccount(models.TextChoices):
    RECEIVABLE = "receivable"  # what the organisation owes
    REVENUE = "revenue"


class LedgerEntry(OrgOwned):
    """One side of a posting: the two sides of a usage event's unit share `event_id` and `unit` and sum to zero.

    Rows are only ever inserted (the database refuses anything else); a correction is a new posting with `reverses`.
    """

    event_id = models.UUIDField()
    unit = models.CharField(max_length=16, choices=Unit)
    account = models.CharField(max_length=16, choices=LedgerAccount)
    quantity = models.BigIntegerField()
    amount = money_field()  # signed: receivable positive, revenue negative
    price = models.ForeignKey(PriceVersion, on_delete=models.PROTECT, related_name="+")
    deployment_id = models.UUIDField()
    key_id = models.UUIDField()
    at = models.DateTimeField()  # when the usage happened, not when it was rated
    period = models.CharField(
        max_length=7
    )  # whose statement it is on: the month of `at`, or the first later one still open
    reverses = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["event_id", "unit", "account"], condition=models.Q(reverses=None), name="ledger_event_once"
            ),
            models.UniqueConstraint(
                fields=["reverses"], condition=models.Q(reverses__isnull=False), name="ledger_reversed_once"
            ),
            models.CheckConstraint(
                condition=models.Q(reverses=None, quantity__gt=0, account="receivable", amount__gte=0)
                | models.Q(reverses=None, quantity__gt=0, account="revenue", amount__lte=0)
                | models.Q(reverses__isnull=False, quantity__lt=0, account="receivable", amount__lte=0)
                | models.Q(reverses__isnull=False, quantity__lt=0, account="revenue", amount__gte=0),
                name="ledger_signs",
            ),
        ]
        indexes = [
            models.Index(fields=["org", "account", "at"], name="ledger_by_org_time"),
            models.Index(fields=["org", "account", "period"], name="ledger_by_org_period"),
            models.Index(fields=["event_id"], name="ledger_by_event"),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class RatedEvent(OrgOwned):
    """Marks a usage event as rated (its id is the event's), so that rating resumes where it stopped."""

    amount = money_field()

    def __str__(self) -> str:
        return str(self.pk)


class SpentSlice(models.Model):
    """The ledger's receivables by gateway, deployment, key and quarter of an hour: what budgets are summed up from. Written in the
    transaction that books, and rebuilt from the books by `spending.rebuild`."""

    id = models.BigAutoField(primary_key=True)
    org = models.ForeignKey("orgs.Organisation", on_delete=models.PROTECT, related_name="+")
    gateway = models.CharField(max_length=64)
    deployment_id = models.UUIDField()
    key_id = models.UUIDField()
    at = models.DateTimeField()  # beginning of the quarter of an hour
    amount = money_field()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["org", "at", "gateway", "deployment_id", "key_id"], name="spent_slice_once")
        ]

    def __str__(self) -> str:
        return f"{self.gateway} {self.at}"


class BudgetScope(models.TextChoices):
    ORG = "org"
    DEPLOYMENT = "deployment"
    KEY = "key"
    MEMBER = "member"


class BudgetPeriodKind(models.TextChoices):
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


class Budget(OrgOwned):
    """A hard limit: requests that could exceed it are refused (berth_gateway, docs/limits.md). Periods are the organisation's."""

    scope = models.CharField(max_length=16, choices=BudgetScope)
    subject_id = models.UUIDField()  # of the organisation, deployment, key or member
    period = models.CharField(max_length=8, choices=BudgetPeriodKind)
    amount = money_field()
    version = (
        models.BigIntegerField()
    )  # only rises: microseconds of the last change, so that it does after a restored backup too
    created_by = models.ForeignKey("orgs.User", null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["org", "scope", "subject_id", "period"], name="budget_once"),
            # Amounts cross to gateways as 64-bit integers of the smallest unit.
            models.CheckConstraint(condition=models.Q(amount__gte=0, amount__lte=9_000_000), name="budget_amount"),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.period}"


class BudgetPeriod(models.Model):
    """That a budget's period was written to Valkey once, and what gateways had claimed when it was last looked at: should Valkey
    lose everything, this is where it begins again."""

    id = models.BigAutoField(primary_key=True)
    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="periods")
    name = models.CharField(max_length=10)
    claims = models.JSONField(default=dict)  # gateway -> 10^-12 of the currency, as text
    seeded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["budget", "name"], name="budget_period_once")]

    def __str__(self) -> str:
        return self.name


class Statement(OrgOwned):
    """A closed month. An open month is computed on the fly; a closed one is these rows and carries a hash of its lines."""

    period = models.CharField(max_length=7)  # "2026-11", in the organisation's time zone
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    currency = models.CharField(max_length=3)
    total_micro = models.BigIntegerField()  # sum of the lines
    content_hash = models.CharField(max_length=64)
    closed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["org", "period"], name="statement_once")]

    def __str__(self) -> str:
        return self.period


class StatementLine(OrgOwned):
    """Its id is made from what it sums up (`statements.line_id`), so that it is the same while the month is open and after."""

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    deployment_id = models.UUIDField()
    deployment_name = models.CharField(max_length=63)  # as it was at closing
    price = models.ForeignKey(PriceVersion, on_delete=models.PROTECT, related_name="+")
    unit = models.CharField(max_length=16, choices=Unit)
    quantity = models.BigIntegerField()
    unit_price = money_field()
    exact = money_field()  # before rounding
    amount_micro = models.BigIntegerField()  # rounded half to even, once

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["statement", "deployment_id", "price", "unit"], name="statement_line_once")
        ]

    def __str__(self) -> str:
        return f"{self.unit} {self.quantity}"
