"""What alerts must do: series as promtool writes them, and at which minute each alert is there for which objects.

Prometheus' own evaluation is used (`promtool test rules`), so nothing of PromQL is done here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

RUN: Final = 'namespace="a", run="r", pod="operator"'
ONE: Final = {"namespace": "a", "run": "r"}
SERVICE: Final = 'namespace="a", service="s", pod="p"'
THE_SERVICE: Final = {"namespace": "a", "service": "s"}
OPERATOR: Final = 'namespace="rltrain-system", pod="operator"'
THE_OPERATOR: Final = {"namespace": "rltrain-system"}
REQUESTS: Final = "ray_rltrain_serve_requests_total"
PROMOTIONS: Final = "rltrain_operator_service_promotions_total"


@dataclass(frozen=True)
class Case:
    """An alert over time."""

    alert: str
    what: str
    series: dict[str, str]
    """Values of each series, a minute apart."""
    then: dict[int, list[dict[str, str]]]
    """By minute: labels of the alerts that fire, without their severity."""
    thresholds: dict[str, Any] = field(default_factory=dict)


def trains(phase: str = "Training", minutes: int = 600) -> dict[str, str]:
    """A run in this phase."""
    return {f'rltrain_run_phase{{{RUN}, phase="{phase}"}}': f"1x{minutes}"}


def waits(reason: str, condition: str = "ClusterReady", minutes: int = 2000) -> dict[str, str]:
    """A run that waits for something."""
    return {f'rltrain_run_waits{{{RUN}, condition="{condition}", reason="{reason}"}}': f"1x{minutes}"}


def replicas(ready: str, desired: str = "2x60") -> dict[str, str]:
    """Replicas of a service, as the operator counts them."""
    return {
        f'rltrain_operator_service_replicas{{{SERVICE}, state="ready"}}': ready,
        f'rltrain_operator_service_replicas{{{SERVICE}, state="desired"}}': desired,
    }


def requests(**by_code: str) -> dict[str, str]:
    """Requests of a service by code, on two replicas that serve two versions."""
    return {
        f'{REQUESTS}{{namespace="a", service="s", pod="{pod}", version="{version}", code="{code[1:]}"}}': values
        for code, values in by_code.items()
        for pod, version in (("p", "v1"), ("q", "v2"))
    }


def promotions(**by_result: str) -> dict[str, str]:
    """Promotions of a service by result."""
    return {f'{PROMOTIONS}{{{SERVICE}, result="{result}"}}': values for result, values in by_result.items()}


CASES: Final = [
    Case(
        "RLTrainOperatorDown",
        "the one that works goes, and the other does not take over",
        {
            'rltrain_operator_leader{pod="one"}': "1x10 stale",
            'rltrain_operator_leader{pod="two"}': "0x40",
        },
        {9: [], 12: [], 17: [{}]},
    ),
    Case(
        "RLTrainOperatorDown",
        "the other takes over",
        {
            'rltrain_operator_leader{pod="one"}': "1x10 stale",
            'rltrain_operator_leader{pod="two"}': "0x12 1x20",
        },
        {12: [], 20: [], 30: []},
    ),
    Case("RLTrainOperatorDown", "nothing is scraped at all", {"up": "0x20"}, {4: [], 6: [{}]}),
    Case(
        "RLTrainOperatorLeaders",
        "two work",
        {
            f"rltrain_operator_leader{{{OPERATOR}}}": "1x20",
            'rltrain_operator_leader{namespace="rltrain-system", pod="b"}': "0x5 1x14",
            'rltrain_operator_leader{namespace="team-a", pod="c"}': "1x20",
        },
        {5: [], 9: [THE_OPERATOR]},
    ),
    Case(
        "RLTrainOperatorBehind",
        "the queue is not emptied",
        {f"rltrain_operator_queue_depth{{{OPERATOR}}}": "0 7x30"},
        {10: [], 12: [THE_OPERATOR]},
    ),
    Case(
        "RLTrainOperatorBehind",
        "the queue is emptied now and then",
        {f"rltrain_operator_queue_depth{{{OPERATOR}}}": "700x8 0 700x8 0 700x8 0"},
        {12: [], 20: [], 26: []},
    ),
    Case(
        "RLTrainOperatorErrors",
        "looks fail for one reason",
        {
            f'rltrain_operator_errors_total{{{OPERATOR}, reason="Unexpected"}}': "0x10 1+1x10",
            f'rltrain_operator_errors_total{{{OPERATOR}, reason="Conflict"}}': "0+10x20",
        },
        {10: [], 20: [THE_OPERATOR | {"reason": "Unexpected"}]},
    ),
    Case(
        "RLTrainOperatorRefused",
        "a role is missing",
        {
            f'rltrain_operator_api_calls_total{{{OPERATOR}, verb="create", kind="RayJob", code="403"}}': "0+5x20",
            f'rltrain_operator_api_calls_total{{{OPERATOR}, verb="create", kind="RayJob", code="409"}}': "0+5x20",
            f'rltrain_operator_api_calls_total{{{OPERATOR}, verb="list", kind="Pod", code="200"}}': "0+99x20",
        },
        {15: [THE_OPERATOR | {"verb": "create", "kind": "RayJob", "code": "403"}]},
    ),
    Case(
        "RLTrainOperatorUnreadableRuns",
        "one run",
        {f"rltrain_operator_unreadable_runs{{{OPERATOR}}}": "0x5 1x20"},
        {5: [], 12: [THE_OPERATOR]},
    ),
    Case(
        "RLTrainRunFailed",
        "for six hours",
        {f"rltrain_run_failed_timestamp_seconds{{{RUN}}}": "_x10 600x500"},
        {9: [], 11: [ONE], 360: [ONE], 371: []},
    ),
    Case(
        "RLTrainRunNotReady",
        "one reason after another",
        {
            f'rltrain_run_waits{{{RUN}, condition="ClusterReady", reason="Starting"}}': "1x10 _x30",
            f'rltrain_run_waits{{{RUN}, condition="ClusterReady", reason="ImagePull"}}': "_x10 1x30",
        },
        {29: [], 31: [ONE]},
    ),
    Case("RLTrainRunNotReady", "it waits for quota", waits("Queued"), {60: []}),
    Case("RLTrainRunNotReady", "its queue has another reason", waits("NoFlavor", "Admitted"), {60: []}),
    Case(
        "RLTrainRunNotReady",
        "its queue never admits it",
        waits("Inadmissible", "Admitted"),
        {29: [], 31: [ONE]},
    ),
    Case(
        "RLTrainRunNotReady", "nobody would admit it", waits("KueueMissing", "Admitted"), {29: [], 31: [ONE]}
    ),
    Case("RLTrainRunQueued", "its queue never admits it", waits("Inadmissible", "Admitted"), {1500: []}),
    Case("RLTrainRunNotReady", "a cluster to work in by hand", waits("Idle", "Training"), {60: []}),
    Case("RLTrainRunNotReady", "it is being suspended", waits("Stopping"), {60: []}),
    Case("RLTrainRunQueued", "a day", waits("NamespaceLimit"), {1439: [], 1441: [ONE]}),
    Case(
        "RLTrainRunQueued",
        "a day, for one reason after another",
        {
            **{f'rltrain_run_waits{{{RUN}, condition="Admitted", reason="Queued"}}': "1x700 _x900"},
            **{f'rltrain_run_waits{{{RUN}, condition="Admitted", reason="NoFlavor"}}': "_x700 1x900"},
        },
        {1439: [], 1445: [ONE]},
    ),
    Case("RLTrainRunQueued", "it starts", waits("Starting"), {1500: []}),
    Case("RLTrainRunSilent", "no answer", waits("DriverSilent", "Training"), {9: [], 11: [ONE]}),
    Case("RLTrainRunSilent", "it loads its model", waits("Starting", "Training"), {60: []}),
    Case(
        "RLTrainRunStuck",
        "steps stop",
        {f"rltrain_run_step{{{RUN}}}": "0+1x60 60x60"} | trains(),
        {60: [], 93: [], 95: [ONE]},
    ),
    Case(
        "RLTrainRunStuck",
        "a step takes 25 minutes",
        {f"rltrain_run_step{{{RUN}}}": "1x25 2x25 3x25 4x25"} | trains(),
        {30: [], 55: [], 75: [], 100: []},
    ),
    Case(
        "RLTrainRunStuck",
        "a program that says nothing of its steps",
        {f"rltrain_run_step{{{RUN}}}": "0x120"} | trains(),
        {100: []},
    ),
    Case(
        "RLTrainRunStuck",
        "a run that waits for its pods",
        {f"rltrain_run_step{{{RUN}}}": "7x120"} | trains("Starting"),
        {100: []},
    ),
    Case(
        "RLTrainRunStuck",
        "a threshold of its own",
        {f"rltrain_run_step{{{RUN}}}": "0+1x60 60x90"} | trains(),
        {95: [], 123: [], 125: [ONE]},
        {"runStuckFor": "1h"},
    ),
    Case(
        "RLTrainRunNoFirstStep",
        "it hangs while it evaluates the model that it begins with",
        {f"rltrain_run_step{{{RUN}}}": "0x200"} | trains("Evaluating"),
        {119: [], 121: [ONE]},
    ),
    Case(
        "RLTrainRunNoFirstStep",
        "it hangs in one phase after another",
        {
            f"rltrain_run_step{{{RUN}}}": "0x200",
            f'rltrain_run_phase{{{RUN}, phase="WarmStart"}}': "1x60 _x140",
            f'rltrain_run_phase{{{RUN}, phase="Starting"}}': "_x61 1x139",
            **waits("Starting", "Training", 200),
        },
        {119: [], 121: [ONE]},
    ),
    Case(
        "RLTrainRunNoFirstStep",
        "its pods are not there",
        {f"rltrain_run_step{{{RUN}}}": "0x200"} | trains("Starting") | waits("Unschedulable"),
        {190: []},
    ),
    Case(
        "RLTrainRunNoFirstStep",
        "a program that says nothing of its steps",
        {f"rltrain_run_step{{{RUN}}}": "0x200"} | trains(),
        {190: []},
    ),
    Case(
        "RLTrainRunNoFirstStep",
        "it has done one",
        {f"rltrain_run_step{{{RUN}}}": "0x90 1x110"} | trains("Evaluating"),
        {190: []},
    ),
    Case(
        "RLTrainRunCheckpointOld",
        "none for two hours and a half",
        {f"rltrain_run_checkpoint_timestamp_seconds{{{RUN}}}": "0x600"} | trains(),
        {120: [], 149: [], 152: [ONE]},
    ),
    Case(
        "RLTrainRunCheckpointOld",
        "one each hour",
        {f"rltrain_run_checkpoint_timestamp_seconds{{{RUN}}}": "0x60 3600x60 7200x60 10800x60"} | trains(),
        {119: [], 170: [], 230: []},
    ),
    Case(
        "RLTrainRunCheckpointOld",
        "a run that stands still, then goes on and writes one",
        {
            f"rltrain_run_checkpoint_timestamp_seconds{{{RUN}}}": "0x320 19200x60",
            f'rltrain_run_phase{{{RUN}, phase="Suspended"}}': "1x300",
            f'rltrain_run_phase{{{RUN}, phase="Training"}}': "_x300 1x100",
        },
        {200: [], 319: [], 340: [], 370: []},
    ),
    Case(
        "RLTrainRunScoreFalls",
        "it falls by more than a tenth, and stays there",
        {f"rltrain_run_heldout_score{{{RUN}}}": "0.2 0.5x50 0.8x50 0.75x50 0.65x50"},
        {100: [], 150: [], 160: [], 170: [ONE]},
    ),
    Case(
        "RLTrainRunScoreFalls",
        "one bad evaluation",
        {f"rltrain_run_heldout_score{{{RUN}}}": "0.8x50 0.6x10 0.8x50"},
        {59: [], 70: []},
    ),
    Case(
        "RLTrainRunStale",
        "far behind",
        {f"rltrain_run_staleness_mean{{{RUN}}}": "2x10 9x30"},
        {10: [], 20: [], 30: [ONE]},
    ),
    Case("RLTrainServiceDown", "none is ready", replicas("2x10 0x30"), {10: [], 14: [], 18: [THE_SERVICE]}),
    Case("RLTrainServiceDown", "one of two is", replicas("2x10 1x30"), {30: []}),
    Case("RLTrainServiceDown", "none is wanted", replicas("0x60", "0x60"), {30: []}),
    Case(
        "RLTrainServiceReplicasMissing",
        "one of two",
        replicas("2x10 1x30"),
        {20: [], 28: [THE_SERVICE]},
    ),
    Case("RLTrainServiceReplicasMissing", "one for a while", replicas("2x10 1x10 2x20"), {19: [], 30: []}),
    Case(
        "RLTrainServiceFailed",
        "one",
        {
            'rltrain_operator_services{phase="Failed"}': "_x5 1x20",
            'rltrain_operator_services{phase="Serving"}': "4x25",
        },
        {6: [], 12: [{}]},
    ),
    Case(
        "RLTrainServiceErrors",
        "one request of eleven",
        requests(_200="0+600x60", _500="0x20 0+60x40"),
        {20: [], 23: [], 35: [THE_SERVICE]},
    ),
    Case(
        "RLTrainServiceErrors",
        "clients' mistakes and refusals",
        requests(_200="0+60x60", _400="0+60x60", _429="0+60x60"),
        {35: [], 55: []},
    ),
    Case("RLTrainServiceErrors", "two requests an hour", requests(_500="0+1x60"), {50: []}),
    Case("RLTrainServiceErrors", "there is no policy", requests(_503="0+60x60"), {20: [THE_SERVICE]}),
    Case(
        "RLTrainServiceErrors",
        "a threshold of its own",
        requests(_200="0+600x60", _500="0+60x60"),
        {35: []},
        {"serviceErrorRatio": 0.2},
    ),
    Case(
        "RLTrainServiceOverloaded",
        "one request of six",
        requests(_200="0+600x60", _429="0x20 0+120x40"),
        {20: [], 28: [], 40: [THE_SERVICE]},
    ),
    Case("RLTrainServiceOverloaded", "errors", requests(_200="0+600x60", _500="0+600x60"), {40: []}),
    Case(
        "RLTrainServiceSlow",
        "a tenth takes more than a minute",
        {
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="10"}}': "0+90x60",
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="60"}}': "0+90x60",
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="120"}}': "0+100x60",
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="+Inf"}}': "0+100x60",
        },
        {8: [], 20: [THE_SERVICE]},
    ),
    Case(
        "RLTrainServiceSlow",
        "all are quick, or nobody asks",
        {
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="10"}}': "0+100x30 3000x30",
            f'ray_rltrain_serve_latency_seconds_bucket{{{SERVICE}, version="v", le="+Inf"}}': "0+100x30 3000x30",
        },
        {20: [], 55: []},
    ),
    Case(
        "RLTrainServiceRolledBack",
        "once, for half an hour",
        promotions(promoted="0x5 1x95", rolled_back="0x10 1x90"),
        {9: [], 12: [THE_SERVICE], 35: [THE_SERVICE], 45: []},
    ),
    Case(
        "RLTrainServiceRollBackStuck",
        "once, for half an hour",
        promotions(promoted="0x5 1x95", stuck="0x10 1x90"),
        {9: [], 12: [THE_SERVICE], 35: [THE_SERVICE], 45: []},
    ),
    Case(
        "RLTrainServiceCandidatesRefused",
        "three within six hours",
        promotions(promoted="0x500", refused="0x60 1x60 2x60 3x400"),
        {130: [], 185: [THE_SERVICE]},
    ),
    Case(
        "RLTrainServiceCandidatesRefused",
        "one was promoted between",
        promotions(promoted="0x100 1x400", refused="0x60 1x60 2x60 3x400"),
        {185: [], 300: []},
    ),
    Case(
        "RLTrainServiceCandidatesRefused",
        "three within a day",
        promotions(promoted="0x1500", refused="0x60 1x480 2x480 3x400"),
        {1100: []},
    ),
]
