"""Moving one import from wherever it is to its end: list, fetch, verify, store. It can die at any moment; whoever claims it next
goes on with what is on the disk.

What takes long (bytes, digests, the caged reader) runs in a thread without a database; this thread renews the lease, writes
progress and hears of a cancellation meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from berth.catalog import leases, staging
from berth.catalog.errors import FileRefused, Refused, StoreUnavailable
from berth.catalog.facts import ModelFacts, model_facts
from berth.catalog.files import Staged
from berth.catalog.import_models import ImportState
from berth.catalog.intake.verify import verify
from berth.catalog.models import ImportFile, ModelImport
from berth.catalog.recording import Provenance, keep_version
from berth.catalog.references import check_quota
from berth.catalog.sources.opening import open_source, remote_file
from berth.catalog.sources.source import Listing, Source, SourceTrouble
from berth.catalog.transfer import Stopped, Watch, fetch_file
from berth.web.errors import AWAY, ApiError
from berth.web.events import publish_event

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK: Final = 1.0  # seconds between two signs of life
MOST_FAILURES: Final = 10  # in a row, without a byte in between
MOST_WAIT: Final = 300.0  # seconds between two tries
SMOOTH: Final = 0.3  # weight of the last second in the rate


def run_import(import_id: UUID) -> None:
    """Claims the import and works on it until it is over, has to wait, or is lost to another. Does nothing if it is not to be had."""
    run = leases.claim(import_id, timezone.now())
    if run is not None:
        _Run(run).go()


class _Run:
    def __init__(self, run: ModelImport) -> None:
        self.run, self.watch = run, Watch()
        self.began_with = run.bytes_done
        self.rate: float | None = None
        self.last = (monotonic(), 0)
        self.lost = self.cancelled = False

    def go(self) -> None:
        try:
            self._tick()
            version = self._work()
            self._end(
                ImportState.DONE, version=version, bytes_done=self.run.bytes_total or 0, code="", message="", params={}
            )
        except Stopped:
            if self.cancelled:
                self._end(ImportState.CANCELLED)
        except Refused as refused:
            error = FileRefused(self.run.name, refused, field=None)
            self._fail(error.code, error.message, error.params)
        except SourceTrouble as trouble:
            self._later(trouble.why, trouble.wait)
        except StoreUnavailable as error:
            self._later(str(error.params["why"]), None)
        except ApiError as error:
            self._fail(error.code, error.message, error.params | ({"field": error.field} if error.field else {}))
        except AWAY:
            log.warning(
                "import_deferred", extra={"reason": "database_away"}
            )  # the lease runs out, and the sweep comes back to it
        except Exception as error:  # one import's surprise must not be another's end
            log.exception("import_broke", extra={"reason": type(error).__name__})
            self._later("internal", None)

    # The work

    def _work(self) -> Any:
        source = open_source(self.run)
        files = self._listed(source)
        folder = staging.scratch_of(self.run.pk) / "files"
        self._state(ImportState.FETCHING)
        staged: dict[str, Staged] = {}
        for row in files:
            staged[row.name] = self._fetched(source, row, folder)
        self._state(ImportState.VERIFYING, rate=None)
        base = self._base_facts()
        verdict = self._heavy(lambda: verify({name: each.path for name, each in staged.items()}, base))
        self._state(ImportState.STORING)
        run = self.run
        where = Provenance(
            org=run.org,
            actor=run.created_by,
            name=run.name,
            source=run.source,
            origin=run.origin,
            licence=run.licence,
            description=run.description,
            base=run.base,
        )
        return keep_version(staged, verdict, where, run=run, heavy=self._heavy)

    def _listed(self, source: Source) -> list[ImportFile]:
        """The rows of the import's files: those of an earlier look, which are pinned, or new ones."""
        rows = list(ImportFile.objects.for_org(self.run.org_id).filter(run=self.run).order_by("name"))
        if rows:
            for row in rows:
                self.watch.set(row.name, row.done)
            return rows
        self._state(ImportState.LISTING)
        listing = self._heavy(source.listing)
        total = sum(each.size or 0 for each in listing.files)
        check_quota(self.run.org, total, self.run)
        return self._record(listing, total)

    @transaction.atomic
    def _record(self, listing: Listing, total: int) -> list[ImportFile]:
        run = self.run
        rows = [
            ImportFile(
                org=run.org,
                run=run,
                name=each.name,
                location=each.location,
                size=each.size,
                sha256=each.sha256,
                tag=each.tag,
            )
            for each in listing.files
        ]
        ImportFile.objects.for_org(run.org).bulk_create(rows)
        run.request = run.request | listing.pins
        run.origin, run.licence, run.bytes_total = listing.origin[:400], run.licence or listing.licence, total
        self._write(request=run.request, origin=run.origin, licence=run.licence, bytes_total=total)
        return rows

    def _fetched(self, source: Source, row: ImportFile, folder: Any) -> Staged:
        remote = remote_file(row)
        staged = self._heavy(lambda: fetch_file(source, remote, folder / row.name, self.watch))
        if row.size is None:
            self.run.bytes_total = (self.run.bytes_total or 0) + staged.size
            check_quota(self.run.org, self.run.bytes_total, self.run)
            self._write(bytes_total=self.run.bytes_total)
        ImportFile.objects.for_org(self.run.org_id).filter(pk=row.pk).update(done=staged.size)
        if self.run.source == "upload":
            self._heavy(lambda: staging.drop_parts(self.run.pk, row.pk))
        return staged

    def _base_facts(self) -> ModelFacts | None:
        base = self.run.base
        return model_facts(base.facts) if base is not None and base.facts else None

    # Signs of life

    def _heavy(self, work: Callable[[], T]) -> T:
        """Runs it in a thread, and tells of it meanwhile. Raises what it raises, and Stopped."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            while not wait([future], timeout=TICK).done:
                try:
                    self._tick()
                except BaseException:
                    self.watch.stopped.set()
                    raise
            result = future.result()
        self.watch.check()
        return result

    def _tick(self) -> None:
        now, done = monotonic(), self.watch.total()
        then, before = self.last
        if now - then >= TICK / 2:
            lately = max(0, done - before) / (now - then)
            self.rate = lately if self.rate is None else self.rate + SMOOTH * (lately - self.rate)
            self.last = (now, done)
        moved = {"bytes_done": done, "rate": None if self.rate is None else int(self.rate)} if done else {}
        self._write(**moved)
        cancelled = (
            ModelImport.objects.for_org(self.run.org_id).filter(pk=self.run.pk).values_list("cancelled_at", flat=True)
        )
        if cancelled.first() is not None:
            self.cancelled = True
            self.watch.stopped.set()
            raise Stopped

    def _state(self, state: ImportState, **values: Any) -> None:
        self.run.state = state
        self._write(state=state, **values)

    def _write(self, **values: Any) -> None:
        if not leases.write(self.run, timezone.now(), **values):
            self.lost = True
            self.watch.stopped.set()
            raise Stopped
        if values:
            self._announce()

    def _announce(self) -> None:
        told = {"kind": "import", "import": str(self.run.pk), "state": self.run.state}
        publish_event(self.run.org_id, "models", self.run.name, None, told)

    # Ends

    def _end(self, state: ImportState, **values: Any) -> None:
        self.run.state = state
        if leases.release(self.run, state=state, finished_at=timezone.now(), rate=None, **values):
            self._announce()
            staging.drop_scratch(self.run.pk)
            staging.drop_parts(self.run.pk)

    def _fail(self, code: str, message: str, params: dict[str, Any]) -> None:
        self._end(ImportState.FAILED, code=code[:64], message=message[:600], params=params)

    def _later(self, why: str, asked: float | None) -> None:
        """Tries again after a while, longer each time, unless nothing moved for too long."""
        run = self.run
        failures = 1 if self.watch.total() > self.began_with else run.failures + 1
        if failures > MOST_FAILURES:
            self._fail(
                "source_unreachable",
                f"The source did not answer as it should {failures} times in a row ({why}). What has arrived is thrown away. Check the "
                "source and start the import again.",
                {"why": why, "tries": failures},
            )
            return
        if why == "source_changed":  # another content under the same address: what is listed and fetched is of no use
            ImportFile.objects.for_org(run.org_id).filter(run=run).delete()
            staging.drop_scratch(run.pk)
        pause = max(asked or 0.0, min(MOST_WAIT, 2.0**failures))
        run.state = ImportState.QUEUED
        leases.release(
            run,
            state=ImportState.QUEUED,
            failures=failures,
            bytes_done=max(run.bytes_done, self.watch.total()),
            rate=None,
            code="waiting",
            message=f"The source did not answer as it should ({why}). It is tried again.",
            params={"why": why, "tries": failures},
            check_at=timezone.now() + timedelta(seconds=pause),
        )
        self._announce()
