"""Objects that nobody would write and somebody may send: odd runs and profiles, and odd objects of a run's, as JSON text."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from rl_api.crd import definitions

UID_OF_THE_RUN = "@uid@"
"""Stands for the uid of the run that an object says it belongs to."""


class Odd(NamedTuple):
    """One object to send."""

    kind: str
    document: dict[str, Any]
    status: dict[str, Any] | None
    """What its status is changed to, where it is taken."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])


def text_of(document: Any) -> bytes:
    """JSON of a document. What stands for something deep is that, which no encoder of Python would write."""
    text = json.dumps(document)
    return re.sub(
        r'"@deep:(\d+):(\w+)@"',
        lambda found: _nested(int(found[1]), found[2]),
        text,
    ).encode()


def _nested(levels: int, kind: str) -> str:
    before, after = {"list": ("[", "]"), "object": ('{"a":', "}")}[kind]
    return before * levels + "1" + after * levels


_DEEP = st.builds(
    "@deep:{}:{}@".format,
    st.sampled_from([20, 63, 64, 65, 130, 300, 990, 1200]),
    st.sampled_from(["list", "object"]),
)
_LONG = st.builds(
    lambda text, times: text * times,
    st.sampled_from(["a", "é", "\0", "\\", "{", "9"]),
    st.sampled_from([254, 3_000, 40_000, 200_000]),
)
_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *(
                "",
                "\0",
                "a\nb",
                "\x1b[2J",
                "\ud800",
                "\u202e",
                "null",
                "0",
                "-1",
                "1e999",
                "NaN",
                "../../etc",
                "s3://b/../c",
            ),
            *(
                "999999999999h",
                "0s",
                "1h",
                "500m",
                "0.000000001",
                "9999999999999999999Pi",
                "1e308",
                "(" * 2_000,
                "(a{0,999}){0,999}",
            ),
            *(
                "x:y",
                "a b",
                "{question",
                "{0.__class__}",
                "rltrain.dev/run",
                "2026-99-99T00:00:00Z",
                "9999-12-31T23:59:59Z",
            ),
        ]
    ),
    _LONG,
)
_NUMBER = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(
        [
            0,
            -1,
            1,
            2**31,
            2**53,
            2**63 - 1,
            -(2**63),
            10**20,
            10**300,
            1e-9,
            1e308,
            -1e308,
            0.1,
            65_535,
            52_365,
        ]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
_LEAF = st.one_of(st.none(), st.booleans(), _NUMBER, _TEXT, _DEEP)
_MANY = st.builds(
    lambda value, times: [value] * times,
    st.one_of(_NUMBER, st.text(max_size=8), st.just({})),
    st.sampled_from([65, 400, 20_000]),
)
VALUES = st.recursive(
    st.one_of(_LEAF, _MANY),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)
_RUNS: list[dict[str, Any]] = [
    {
        "profile": "honest",
        "model": {"source": "tiny"},
        "task": {
            "environment": "reasoning-gym",
            "name": "chain_sum",
            "args": {},
            "rewards": [{"rule": "regex", "pattern": "a"}],
        },
        "checkpoint": {"storage": {"path": "/var/lib/checkpoints"}},
        "sampler": {"resources": {"memory": "1Gi"}},
    },
    {
        "trainer": {
            "kind": "command",
            "command": ["python", "x.py"],
            "env": [{"name": "A", "value": "b"}],
            "config": {},
        },
        "checkpoint": None,
    },
]


def _paths(schema: dict[str, Any], path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    for name, inner in schema.get("properties", {}).items():
        found += _paths(inner, (*path, name))
    if "items" in schema:
        found += _paths(schema["items"], (*path, 0))
    return found


def _schema(kind: str, part: str) -> dict[str, Any]:
    version = definitions()[kind]["spec"]["versions"][0]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def _set(document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    inside: Any = document
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        there = (inside[0] if inside else None) if isinstance(part, int) else inside.get(part)
        if not isinstance(there, type(empty)):
            if isinstance(part, int):
                inside[:] = [empty]
            else:
                inside[part] = empty
        inside = inside[part]
    last = path[-1]
    if isinstance(last, int):
        inside[:] = [value]
    else:
        inside[last] = value


def _changed(
    base: st.SearchStrategy[dict[str, Any]], schema: dict[str, Any], most: int = 4
) -> st.SearchStrategy[dict[str, Any]]:
    """What `base` gives, with odd values for some of the fields of the schema."""
    changes = st.lists(st.tuples(st.sampled_from(_paths(schema)), VALUES), min_size=1, max_size=most)

    def change(document: dict[str, Any], changes: list[tuple[tuple[str | int, ...], Any]]) -> dict[str, Any]:
        document = deepcopy(document)
        for path, value in changes:
            _set(document, path, value)
        return document

    return st.builds(change, base, changes)


def _free(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A run with anything where anything may stand."""
    places = [("task", "args"), ("task", "chatTemplateKwargs"), ("trainer", "config"), ("task", "tools")]

    def fill(place: tuple[str, str], value: Any) -> dict[str, Any]:
        document = deepcopy(base)
        _set(document, place, [{"x": value}] if place[1] == "tools" else {"x": value})
        return document

    return st.builds(fill, st.sampled_from(places), st.one_of(_DEEP, VALUES))


_STATUSES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"phase": "Training", "attempts": [{"number": 1, "rayJob": "x-1"}], "conditions": []},
        {"phase": "Succeeded", "conditions": [{"type": "Succeeded", "status": "True"}]},
        {"checkpoint": {"step": 2**53 - 1, "uri": "\x1b]0;x\x07" * 100}, "progress": {"reward": 1e308}},
        {"attempts": [{"number": 2**53, "startTime": "0001-01-01T00:00:00Z"}], "nulls": ["task", "x.y", ""]},
    ]
)
_RUN_STATUS = st.one_of(_STATUSES, _changed(_STATUSES, _schema("rltrainingruns", "status"), most=1))
_ANNOTATIONS = st.one_of(
    st.just({}),
    st.builds(
        lambda key, value: {key: value},
        st.sampled_from(
            [
                *(
                    "kubectl.kubernetes.io/last-applied-configuration",
                    "rltrain.dev/manifest",
                    "rltrain.dev/image",
                ),
                *("rltrain.dev/spec-hash", "note"),
            ]
        ),
        st.one_of(
            _TEXT,
            st.sampled_from(
                [
                    _nested(1_100, "object"),
                    _nested(90_000, "list"),
                    '{"spec": null}',
                    '{"spec": {"checkpoint": null}}',
                ]
            ),
            st.builds(
                lambda levels: '{"spec": {"task": null, "model": ' + _nested(levels, "object") + "}}",
                st.integers(1, 3_000),
            ),
        ),
    ),
)
_NAMES = st.sampled_from([f"odd-{number}" for number in range(12)])


def _runs() -> st.SearchStrategy[Odd]:
    specs = st.one_of(
        _changed(st.sampled_from(_RUNS), _schema("rltrainingruns", "spec")),
        st.sampled_from(_RUNS).flatmap(_free),
        st.sampled_from(_RUNS),
        st.builds(lambda value: {"x": value}, VALUES),
    )
    return st.builds(
        lambda name, spec, notes, status: Odd(
            "RLTrainingRun",
            {
                "apiVersion": "rltrain.dev/v1alpha1",
                "kind": "RLTrainingRun",
                "metadata": {"name": name, "annotations": notes},
                "spec": spec,
            },
            status,
        ),
        _NAMES,
        specs,
        _ANNOTATIONS,
        st.one_of(st.none(), _RUN_STATUS),
    )


def _profiles() -> st.SearchStrategy[Odd]:
    base = {"pools": [{"name": "cpu"}], "defaults": {"sampler": {"threads": 2}}}
    return st.builds(
        lambda name, spec: Odd(
            "RLTrainingProfile",
            {
                "apiVersion": "rltrain.dev/v1alpha1",
                "kind": "RLTrainingProfile",
                "metadata": {"name": name},
                "spec": {**spec, "default": False},
            },
            None,
        ),
        st.sampled_from([f"odd-{number}" for number in range(3)]),
        _changed(st.just(base), _schema("rltrainingprofiles", "spec")),
    )


_POD_SPEC = {"containers": [{"name": "ray-head", "image": "x"}]}
_GROUP = {"rayStartParams": {}, "template": {"spec": _POD_SPEC}}
_CLUSTER = {
    "headGroupSpec": _GROUP,
    "workerGroupSpecs": [
        {"groupName": "sampler", "replicas": 1, "minReplicas": 0, "maxReplicas": 1, **_GROUP}
    ],
}
_OWNED: dict[str, tuple[str, dict[str, Any]]] = {
    "RayJob": ("ray.io/v1", {"spec": {"entrypoint": "x", "rayClusterSpec": _CLUSTER}}),
    "RayCluster": ("ray.io/v1", {"spec": _CLUSTER}),
    "Pod": ("v1", {"spec": _POD_SPEC}),
    "ConfigMap": ("v1", {"data": {"run.yaml": "x"}}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"spec": {"podSelector": {}}}),
    "PodDisruptionBudget": ("policy/v1", {"spec": {"maxUnavailable": 1}}),
}
_SAID = st.one_of(_TEXT, _NUMBER, st.sampled_from(["Running", "Failed", "SUCCEEDED", "ready", "True"]))
_RAY_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "jobStatus": st.sampled_from(["", "RUNNING", "FAILED", "SUCCEEDED", "STOPPED", "PENDING"]),
        "jobDeploymentStatus": st.sampled_from(
            ["Running", "Failed", "Complete", "Suspended", "Initializing", "x"]
        ),
        "message": _TEXT,
        "reason": _TEXT,
        "state": st.sampled_from(["ready", "failed", "suspended"]),
        "rayClusterName": _TEXT,
        "startTime": _TEXT,
        "head": st.fixed_dictionaries({}, optional={"serviceName": _TEXT, "podIP": _TEXT}),
        "conditions": st.lists(
            st.fixed_dictionaries(
                {
                    "type": _TEXT,
                    "status": _SAID,
                    "message": _TEXT,
                    "reason": _TEXT,
                    "lastTransitionTime": st.just("2026-01-01T00:00:00Z"),
                }
            ),
            max_size=2,
        ),
    },
)
_CONTAINER = st.fixed_dictionaries(
    {
        "name": st.just("ray-head"),
        "image": _TEXT,
        "imageID": _TEXT,
        "ready": st.booleans(),
        "restartCount": st.integers(0, 2**31 - 1),
    },
    optional={
        "state": st.builds(lambda text: {"waiting": {"reason": text, "message": text}}, _TEXT),
        "lastState": st.builds(
            lambda text, code: {"terminated": {"reason": text, "exitCode": code, "message": text}},
            _TEXT,
            st.integers(-(2**31), 2**31 - 1),
        ),
    },
)
_POD_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Running", "Failed", "Succeeded", "Pending"]),
        "reason": _TEXT,
        "message": _TEXT,
        "containerStatuses": st.lists(_CONTAINER, max_size=2),
        "conditions": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"]),
                    "status": st.sampled_from(["True", "False", "Unknown"]),
                    "reason": _TEXT,
                    "message": _TEXT,
                }
            ),
            max_size=2,
        ),
    },
)


def _belongings() -> st.SearchStrategy[Odd]:
    """Objects that say they are a run's."""

    def build(kind: str, run: str, attempt: str, notes: dict[str, str], status: Any, pod: Any) -> Odd:
        version, rest = _OWNED[kind]
        labels = {
            "app.kubernetes.io/managed-by": "rltrain-operator",
            "rltrain.dev/run": run,
            "rltrain.dev/attempt": attempt,
            "rltrain.dev/role": "head",
        }
        owner = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "name": run,
            "uid": UID_OF_THE_RUN,
            "controller": True,
        }
        metadata = {
            "name": f"{run}-{kind.lower()}",
            "labels": labels,
            "annotations": notes,
            "ownerReferences": [owner],
        }
        said = status if kind.startswith("Ray") else pod if kind == "Pod" else None
        return Odd(kind, {"apiVersion": version, "kind": kind, "metadata": metadata, **deepcopy(rest)}, said)

    attempts = st.sampled_from(["1", "2", "0", "", "x", "999999", "9" * 7, "9" * 20, "9" * 63])
    return st.builds(
        build, st.sampled_from(sorted(_OWNED)), _NAMES, attempts, _ANNOTATIONS, _RAY_STATUS, _POD_STATUS
    )


ODD_OBJECTS = st.one_of(_runs(), _runs(), _belongings(), _profiles())
"""One odd object."""
