"""What has to be done about replicas that nobody asks anything of, because their cluster does not do it by itself."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.compute.provider import ObservedReplica
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.mirror import Mirror
from berth.compute.providers.kubernetes.observation import Sight, outlived, stuck_for_good, why_departed
from berth.compute.providers.kubernetes.record import without_data
from berth.compute.providers.kubernetes.writing import Writer

Json = dict[str, Any]


class Tender:
    """Methods raise ProviderUnavailable and Refusal."""

    def __init__(self, writer: Writer, records: Mirror, pods: Mirror) -> None:
        self._writer = writer
        self._records = records
        self._pods = pods

    def tend(self, sight: Sight, now: float) -> Json | None:
        """Looks after one replica. The record, if it has changed."""
        pod, record = sight.pod, sight.record
        gone = why_departed(sight)
        if gone is not None:
            return self._note_end(record, gone)
        if pod is None:
            return None
        if outlived(pod, now):
            self._writer.remove_workload(record, pod, grace=0)
            return None
        why = reasons.waiting(pod, None, sight.pending)
        if why is not None and stuck_for_good(sight, why, now):
            self._writer.remove_workload(record, pod, grace=0)
            return self._note_end(record, why)
        if names.FETCHES in pod["metadata"]["labels"] and reasons.condition(pod, "Ready").get("status") == "True":
            self._pods.put(self._writer.close_to_the_store(pod) or pod)
        taken = reasons.disrupted(pod)
        if taken is not None and not {names.STOP_AT, names.END} & (record["metadata"].get("annotations") or {}).keys():
            return self._note_end(record, taken)
        return None

    def end_group(self, record: Json, pod: Json, seen: ObservedReplica) -> None:
        """Of one that has ended: its pods would be started again and again, and hold their nodes, for a replica that is given up."""
        if not {names.STOP_AT, names.END} & (record["metadata"].get("annotations") or {}).keys():
            self._note_end(record, reasons.Why(seen.reason or "agent_lost", seen.message or ""))
        self._writer.remove_workload(record, pod, grace=0)

    def _note_end(self, record: Json, why: reasons.Why) -> Json | None:
        """Kept on the record, because the pod will be gone when somebody asks."""
        annotated = self._writer.annotate(record, {names.END: msgspec.json.encode(why).decode()})
        if annotated is not None:
            self._records.put(without_data(annotated))
        return annotated
