"""What is said of a replica for everything that Kubernetes can say of its pod."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from berth.compute.launch import EngineMetrics, Phase, PhaseTiming, ReplicaStatus
from berth.compute.provider import ObservedReplica
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.observation import Sight, observed, outlived, stuck_for_good
from tests.platform.compute.kubernetes.apiserver.store import timestamp
from tests.platform.compute.kubernetes.world import cluster

Json = dict[str, Any]
NOW = 1_800_000_000.0
MADE = cluster(tier=[{"key": "l4", "cores": 8, "memory_gib": 32, "gpu": "l4", "gpus": 4}])


def record(**annotations: str) -> Json:
    known = {
        names.REPLICA: "dep-1-3-0-0",
        names.ORG: "org-1",
        names.DEPLOYMENT: "dep-1",
        names.STARTED_AT: str(NOW - 100),
    }
    return {
        "metadata": {
            "name": "r-dep-1-3-0-0",
            "uid": "u1",
            "labels": {names.REVISION: "3", names.TIER: "l4"},
            "annotations": known | {key: value for key, value in annotations.items() if value},
        }
    }


def pod(phase: str = "Running", *, ready: bool = False, state: Json | None = None, **status: Any) -> Json:
    conditions = [
        {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp(NOW - 60)},
        *status.pop("conditions", []),
    ]
    return {
        "metadata": {
            "name": "r-dep-1-3-0-0",
            "uid": "p1",
            "labels": {names.TIER: "l4"},
            "creationTimestamp": timestamp(NOW - 90),
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "4", "memory": "9000Mi"}}}],
        },
        "status": {
            "phase": phase,
            "podIP": "10.1.2.3",
            "conditions": conditions,
            "containerStatuses": [{"state": state or {"running": {"startedAt": timestamp(NOW - 80)}}}],
            **status,
        },
    }


def told(phase: Phase = Phase.READY, **changes: Any) -> ReplicaStatus:
    base = ReplicaStatus(
        format=1,
        replica="dep-1-3-0-0",
        pid=1,
        pid_created_at=0.0,
        phase=phase,
        phases=(PhaseTiming(Phase.VERIFYING, NOW - 80, NOW - 70), PhaseTiming(phase, NOW - 70)),
        updated_at=NOW - 20,
        host="10.1.2.3",
        port=8000,
        engine_version="b1",
        metrics=EngineMetrics(running=2),
    )
    return msgspec.structs.replace(base, **changes)


def seen(
    the_pod: Json | None, said: ReplicaStatus | None = None, *, node: Json | None = None, **annotations: str
) -> ObservedReplica:
    return observed(Sight(record(**annotations), the_pod, node, said), MADE, NOW)


def terminated(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": timestamp(NOW - 1)}}


def test_a_ready_pod_is_a_ready_replica_at_its_own_address() -> None:
    replica = seen(pod(ready=True), told())
    assert (replica.ready, replica.host, replica.port) == (True, "10.1.2.3", 8000)
    assert (replica.org_id, replica.deployment_id, replica.revision) == ("org-1", "dep-1", 3)
    assert replica.metrics == EngineMetrics(running=2)
    assert replica.updated_at == NOW, "the kubelet vouches for it"


def test_a_replica_that_calls_itself_ready_and_does_not_answer_its_probe_is_not() -> None:
    replica = seen(pod(ready=False), told())
    assert (replica.alive, replica.ready, replica.phase) == (True, False, Phase.WARMING)
    assert replica.updated_at == NOW - 20, "nobody vouches for it: it is replaced when that gets too old"


def test_a_ready_pod_whose_log_cannot_be_read_serves_all_the_same() -> None:
    replica = seen(pod(ready=True), None)
    assert replica.ready
    assert [timing.phase for timing in replica.phases] == [Phase.VERIFYING, Phase.READY]


def test_a_pod_says_where_its_replica_is_on_its_way() -> None:
    replica = seen(pod(), told(Phase.LOADING, port=None))
    assert (replica.alive, replica.phase, replica.port) == (True, Phase.LOADING, None)


def test_a_replica_without_a_pod() -> None:
    young = seen(None, **{names.STARTED_AT: str(NOW - 1)})
    assert (young.alive, young.phase, young.updated_at) == (False, Phase.STOPPED, 0.0)
    lost = seen(None)
    assert (lost.alive, lost.phase, lost.reason) == (False, Phase.FAILED, "agent_lost")
    assert "somebody else" in (lost.message or "")
    stopped = seen(None, **{names.STOP_AT: str(NOW - 5)})
    assert (stopped.phase, stopped.reason) == (Phase.STOPPED, None)
    taken = seen(None, **{names.END: json.dumps({"reason": "preempted", "message": "Gone."})})
    assert (taken.phase, taken.reason, taken.message) == (Phase.FAILED, "preempted", "Gone.")


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        (
            terminated(1, message='{"phase":"failed","reason":"checksum_mismatch","message":"Not the file."}'),
            {},
            "checksum_mismatch",
        ),
        (terminated(137, "OOMKilled"), {}, "out_of_memory"),
        (terminated(137), {}, "agent_lost"),
        (terminated(137), {"reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted"),
        (terminated(0, message='{"phase":"stopped"}'), {"reason": "Terminated"}, "node_shutdown"),
        ({"waiting": {}}, {"reason": "UnexpectedAdmissionError"}, "node_refused"),
        ({"waiting": {}}, {"reason": "OutOfnvidia.com/gpu"}, "node_refused"),
        (
            terminated(137),
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            "preempted",
        ),
        (
            terminated(137),
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]},
            "node_lost",
        ),
        (terminated(2, message='{"reason":"bad_spec","message":"No."}'), {}, "bad_spec"),
    ],
)
@pytest.mark.threat("E5")
def test_an_end_has_its_reason(state: Json, status: Json, reason: str) -> None:
    replica = seen(pod("Failed", state=state, **status), told())
    assert (replica.alive, replica.phase, replica.reason) == (False, Phase.FAILED, reason)
    assert replica.message
    assert (replica.host, replica.port, replica.metrics) == (None, None, None)


def test_an_end_that_was_ordered_is_no_failure() -> None:
    ordered = {names.STOP_AT: str(NOW - 30)}
    drained = seen(
        pod("Succeeded", state=terminated(0, "Completed", '{"phase":"stopped"}')), told(Phase.STOPPED), **ordered
    )
    assert (drained.phase, drained.reason) == (Phase.STOPPED, None)
    forced = seen(pod("Failed", state=terminated(137)), told(Phase.DRAINING), **ordered)
    assert (forced.phase, forced.reason) == (Phase.STOPPED, "stopped_by_force")


def test_an_orderly_end_that_nobody_ordered_is_one() -> None:
    ended = pod("Succeeded", state=terminated(0, "Completed", '{"phase":"stopped"}'))
    assert (seen(ended).phase, seen(ended).reason) == (Phase.FAILED, "agent_lost")
    by_itself = pod("Succeeded", state=terminated(0, "Completed", '{"phase":"stopped","reason":"supervisor_ended"}'))
    assert (seen(by_itself).phase, seen(by_itself).reason) == (Phase.STOPPED, "supervisor_ended")


def test_a_pod_that_is_asked_to_end_drains_and_says_who_wants_it() -> None:
    ending = pod(
        ready=True, conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    )
    ending["metadata"]["deletionTimestamp"] = timestamp(NOW + 30)
    replica = seen(ending, told())
    assert (replica.alive, replica.phase, replica.reason) == (True, Phase.DRAINING, "node_drained")


@pytest.mark.parametrize("by", ["node", "pod"])
def test_on_a_node_that_is_lost_nothing_is_alive(by: str) -> None:
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}} if by == "node" else None
    the_pod = pod(ready=True)
    if by == "pod":
        the_pod["status"]["conditions"][0] = {"type": "Ready", "status": "False", "reason": "NodeLost"}
    replica = seen(the_pod, told(), node=lost)
    assert (replica.alive, replica.phase, replica.reason) == (False, Phase.FAILED, "node_lost")


def unscheduled(message: str) -> Json:
    waiting = pod(
        "Pending",
        state={"waiting": {}},
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    )
    del waiting["spec"]["nodeName"], waiting["status"]["containerStatuses"]
    return waiting


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector.",
            "No node has 2 free L4; 3 pending.",
        ),
        (
            "0/5 nodes are available: 1 Insufficient cpu, 4 Insufficient memory. preemption: not helpful",
            "No node of tier l4 has 9000Mi of free memory; 3 pending.",
        ),
        ("0/5 nodes are available: 5 Insufficient cpu.", "No node of tier l4 has 4 free CPU cores; 3 pending."),
        ("0/2 nodes are available: 2 node(s) had untolerated taint {x: y}.", "No node of tier l4 may take the replica"),
        ("0/0 nodes are available.", "The cluster has no nodes. 3 pending."),
        (
            "0/5 nodes are available: 5 Insufficient ephemeral-storage.",
            "No node of tier l4 has enough ephemeral-storage; 3 pending.",
        ),
        ("something new", "found no node for the replica yet; 3 pending."),
    ],
)
def test_a_pod_that_finds_no_node_says_what_is_short(message: str, said: str) -> None:
    replica = observed(Sight(record(), unscheduled(message), None, None, pending=3), MADE, NOW)
    assert (replica.alive, replica.phase, replica.reason) == (True, Phase.FETCHING, "no_capacity")
    assert said in (replica.message or "")
    assert replica.updated_at == NOW, "it waits; it is not stuck"


@pytest.mark.parametrize(
    ("state", "reason"), [("ImagePullBackOff", "image_unavailable"), ("CreateContainerConfigError", "pod_refused")]
)
def test_a_pod_that_cannot_begin_says_so_and_is_given_up_in_the_end(state: str, reason: str) -> None:
    stuck = pod(
        "Pending",
        state={"waiting": {"reason": state}},
        conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(NOW - 500)}],
    )
    sight = Sight(record(), stuck, None, None)
    replica = observed(sight, MADE, NOW)
    assert (replica.alive, replica.reason) == (True, reason)
    assert state in (replica.message or "")
    why = reasons.waiting(stuck, None, 0)
    assert not stuck_for_good(sight, why, NOW)
    assert stuck_for_good(sight, why, NOW + 200)


def test_waiting_for_room_is_never_given_up() -> None:
    waiting = unscheduled("0/5 nodes are available: 5 Insufficient cpu.")
    assert not stuck_for_good(Sight(record(), waiting, None, None), reasons.waiting(waiting, None, 0), NOW + 10**7)


def test_no_text_of_kubernetes_is_shown() -> None:
    hostile = pod("Failed", state=terminated(1), reason="Evicted", message="low on resource: <b>prompt</b> SECRET")
    assert "SECRET" not in msgspec.json.encode(seen(hostile)).decode()


def test_what_a_pod_says_of_another_replica_or_in_another_form_is_passed_over() -> None:
    from berth.compute.providers.kubernetes.journal import last_status, log_lines

    lines = [
        msgspec.json.encode({"status": told(Phase.LOADING)}),
        msgspec.json.encode({"status": msgspec.structs.replace(told(), replica="another")}),
        msgspec.json.encode({"status": msgspec.structs.replace(told(), format=99)}),
        b'{"status": "ready"}',
        b'{"status": [',
        b"Traceback: the prompt was SECRET",
        b'{"n": 4, "at": 1.0, "source": "agent", "text": "hello"}',
        b'{"n":5,"at":1.0,"source":"engine","text":"' + b"x" * 1000 + b'"}',
        b'{"n":"six"}',
    ]
    found = last_status(b"\n".join(lines), "dep-1-3-0-0")
    assert found is not None
    assert found.phase is Phase.LOADING
    assert [(line.number, len(line.text or "")) for line in log_lines(b"\n".join(lines))] == [(4, 5), (5, 400)]


def test_only_a_pod_long_past_its_time_has_outlived_it() -> None:
    ending = pod()
    assert not outlived(ending, NOW)
    ending["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert not outlived(ending, NOW + 10)
    assert outlived(ending, NOW + 60)


def test_a_container_that_somebody_put_beside_it_changes_nothing() -> None:
    """A mesh's proxy runs on after the replica, so that its pod never says that it has ended."""
    beside = {"name": "proxy", "state": {"running": {"startedAt": timestamp(NOW - 80)}}}
    word = json.dumps({"phase": "failed", "reason": "checksum_mismatch", "message": "A file is not what it should be."})
    over = {"terminated": {"exitCode": 1, "reason": "Error", "message": word, "finishedAt": timestamp(NOW - 1)}}
    both = pod(containerStatuses=[beside, {"name": "runtime", "state": over}])
    seen = observed(Sight(record(), both, None, None), MADE, NOW)
    assert (seen.alive, seen.phase, seen.reason) == (False, Phase.FAILED, "checksum_mismatch")
    killed = {"name": "proxy", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    running = pod(
        containerStatuses=[killed, {"name": "runtime", "state": {"running": {"startedAt": timestamp(NOW - 80)}}}]
    )
    seen = observed(Sight(record(), running, None, None), MADE, NOW)
    assert (seen.alive, seen.reason) == (True, None)
    short = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes: 3 Insufficient memory.",
    }
    waits = pod("Pending", conditions=[short], containerStatuses=[])
    waits["spec"]["containers"] = [
        {"name": "proxy", "resources": {"requests": {"memory": "64Mi"}}},
        {**waits["spec"]["containers"][0], "name": "runtime"},
    ]
    assert "9000Mi" in str(observed(Sight(record(), waits, None, None), MADE, NOW).message)


def test_a_pod_that_never_had_a_node_and_is_kept_by_a_finalizer_has_ended() -> None:
    kept = pod("Pending", containerStatuses=[])
    del kept["spec"]["nodeName"]
    kept["metadata"] |= {"deletionTimestamp": timestamp(NOW - 1), "finalizers": ["example.org/queue"]}
    seen = observed(Sight(record(**{names.STOP_AT: str(NOW - 1)}), kept, None, None), MADE, NOW)
    assert (seen.alive, seen.phase) == (False, Phase.STOPPED)
