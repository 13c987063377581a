"""What the watches have seen, by run. Keeps views, not whole objects: memory grows with runs, not with YAML."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rl_api.validation import size_problem
from rl_operator.kube.applied import Nulls, with_nulls
from rl_operator.kube.wire import version_of
from rl_operator.model.figures import Figures, figures_of
from rl_operator.model.names import KIND, RUN_LABEL, Key, Manifest
from rl_operator.model.nesting import shallow
from rl_operator.model.parse import (
    controller_of,
    parse_group,
    parse_live,
    parse_node,
    parse_pod,
    parse_ray,
)
from rl_operator.model.seen import Live, Pod, Ray, WorkerGroup
from rl_operator.model.workload import Workload, parse_workload

WATCHED: Final = (
    "RLTrainingRun",
    "RLTrainingProfile",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Pod",
    "ResourceClaimTemplate",
    "RayJob",
    "RayCluster",
    "Workload",
    "Node",
)
"""Kinds that are watched. RayJobs and RayClusters exist only where KubeRay is installed, Workloads only where
Kueue is, ResourceClaimTemplates since Kubernetes 1.34."""

UNLABELLED: Final = frozenset({"Workload", "Node"})
"""Kinds of which others' objects are looked at too: who waits in a queue before a run, and which nodes are cordoned."""

_OF_RUN: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
)
"""What is kept of a run's metadata."""

_TOMBSTONES: Final = 600.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class Run:
    """A run between two looks at it. As a text it takes a fifteenth of the memory that it takes as objects of Python's."""

    text: bytes
    figures: Figures
    begun: bool
    """Whether its status has attempts."""


@dataclass(frozen=True)
class Seen:
    """One object as it was seen last."""

    kind: str
    uid: str
    version: int
    view: Run | Ray | Pod | Live | WorkerGroup | Workload | Manifest | str | None
    """None: it is no object of a run; only its version is known. Text: of a node, why it is cordoned; empty: it is not."""
    owner: str = ""
    """Uid of the run that owns it, or of the RayJob that controls a RayCluster; empty for pods, whose view says it."""


class Store:
    """The last state of everything that is watched. Older news than what is known is dropped."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Seen]] = {kind: {} for kind in WATCHED}
        self._of_run: dict[Key, set[tuple[str, Key]]] = defaultdict(set)
        self._run_of: dict[tuple[str, Key], Key] = {}
        self._workloads: dict[str, dict[str, Workload]] = defaultdict(dict)
        """By namespace and name: whoever waits asks for those in its queue again and again."""
        self._absent: set[str] = set()
        self._deleted: OrderedDict[str, int] = OrderedDict()
        """The version at which an object was gone: news of it may be late, and one whose label is back is there again."""
        self._ended: OrderedDict[Key, list[tuple[float, Pod]]] = OrderedDict()
        """By run; the one whose last pod ended first comes first."""

    def put(self, document: Manifest) -> list[Key]:
        """Take over an object; returns the runs that it concerns."""
        kind, place, uid = document["kind"], place_of(document), str(document["metadata"].get("uid", ""))
        known, version = self._objects[kind].get(place), version_of(document)
        if version <= self._deleted.get(uid, -1):
            return []
        if known is not None and known.version >= version:  # also of an older object of this name
            return []
        view = _view(document)
        if kind == "Node":
            self._objects[kind][place] = Seen(kind, uid, version, view)
            before = known.view if known is not None else ""
            return self._with_pods_on(place[1]) if view != before else []
        self._objects[kind][place] = Seen(
            kind, uid, version, view, _owner(document) or controller_of(document, "RayJob")
        )
        if isinstance(view, Workload):
            self._workloads[place[0]][place[1]] = view
        if view is None:
            return [key] if (key := self._run_of.get((kind, place))) else []
        if isinstance(view, WorkerGroup) and known is not None and known.view == view:
            return []
        return self._note(kind, place, document)

    def drop(self, document: Manifest) -> list[Key]:
        """Forget an object that was deleted; returns the runs that it concerned."""
        kind, place, uid = document["kind"], place_of(document), str(document["metadata"].get("uid", ""))
        return self._gone(
            kind, place, uid, version_of(document), parse_pod(document) if kind == "Pod" else None
        )

    def listed(
        self, kind: str, namespace: str | None, there: Collection[str] | None, version: int
    ) -> list[Key]:
        """Forget what is not among the uids that were `there` at `version`, in one namespace or all; returns the runs that
        this concerns. None: the cluster does not know the kind."""
        concerned = self.runs() if (kind in self._absent) != (there is None) else []
        (self._absent.discard if there is not None else self._absent.add)(kind)
        for place, seen in list(self._objects[kind].items()):
            if there is None or (
                seen.uid not in there and seen.version <= version and namespace in (None, place[0])
            ):
                # A kind that the cluster does not know for a moment comes back with the same objects at the same versions.
                gone_at = seen.version - 1 if there is None else max(version, seen.version)
                concerned += self._gone(kind, place, seen.uid, gone_at)
        return concerned

    def serves(self, kind: str) -> bool:
        """Whether the cluster knows this kind, as far as is known."""
        return kind not in self._absent

    def _gone(self, kind: str, place: Key, uid: str, version: int, last: Pod | None = None) -> list[Key]:
        """Forget an object; `last` is what was seen of a pod at its end. Returns the runs that it concerned."""
        if uid:
            self._deleted[uid] = version
            while len(self._deleted) > _REMEMBERED:
                self._deleted.popitem(last=False)
        known = self._objects[kind].get(place)
        if known is not None and known.uid != uid:
            return []
        seen = self._objects[kind].pop(place, None)
        if kind == "Workload":
            self._workloads[place[0]].pop(place[1], None)
        if kind == "RLTrainingProfile":
            return list(self._objects[KIND])
        if kind == KIND:
            self._ended.pop(place, None)
            return [place]
        key = self._leave(kind, place)
        if key is None:
            return []
        if last is None and seen is not None and isinstance(seen.view, Pod):
            last = seen.view
        if last is not None:
            self._bury(key, last)
        return [key]

    def run(self, key: Key) -> Manifest | None:
        """The run as the API server holds it."""
        seen = self._objects[KIND].get(key)
        return json.loads(seen.view.text) if seen is not None and isinstance(seen.view, Run) else None

    def begun(self, key: Key) -> bool | None:
        """Whether attempts of the run are in its status; None: there is no such run."""
        seen = self._objects[KIND].get(key)
        return seen.view.begun if seen is not None and isinstance(seen.view, Run) else None

    def gives_way(self, key: Key) -> bool:
        """Whether Kueue wants quota back that the run has, or some of its samplers."""
        return any(one.taken for one in self._workloads_of(key))

    def may_begin(self, key: Key) -> bool:
        """Whether Kueue has admitted the run, and nothing of it has pods yet."""
        there = {kind for kind, _ in self._of_run.get(key, ())}
        if not there.isdisjoint(("RayJob", "RayCluster")):
            return False
        return any(one.runs and one.slice is None for one in self._workloads_of(key))

    def _workloads_of(self, key: Key) -> Iterator[Workload]:
        known = self._objects["Workload"]
        for kind, place in self._of_run.get(key, ()):
            if kind == "Workload" and place in known and isinstance(view := known[place].view, Workload):
                yield view

    def runs(self) -> list[Key]:
        """All runs."""
        return list(self._objects[KIND])

    def profiles(self) -> list[Manifest]:
        """All profiles."""
        seen = self._objects["RLTrainingProfile"].values()
        return [one.view for one in seen if isinstance(one.view, dict)]

    def profiles_version(self) -> tuple[tuple[str, int], ...]:
        """Something that changes when a profile does."""
        return tuple(sorted((one.uid, one.version) for one in self._objects["RLTrainingProfile"].values()))

    def of_run(self, key: Key) -> Iterator[tuple[str, Seen]]:
        """Name and state of everything that belongs to a run."""
        for kind, place in sorted(self._of_run.get(key, ())):
            seen = self._objects[kind].get(place)
            if seen is not None:
                yield place[1], seen

    def uid_of(self, kind: str, place: Key, owner: str) -> str:
        """Uid of the object of this kind at this place, if it belongs to `owner`; else empty."""
        seen = self._objects[kind].get(place)
        return seen.uid if seen is not None and seen.owner == owner else ""

    def cordoned(self, node: str) -> str:
        """Why no more pods are put on a node; empty: they are, as far as is known."""
        seen = self._objects["Node"].get(("", node))
        return seen.view if seen is not None and isinstance(seen.view, str) else ""

    def _with_pods_on(self, node: str) -> list[Key]:
        """The runs that have pods there."""
        pods = self._objects["Pod"].items()
        places = [place for place, seen in pods if isinstance(seen.view, Pod) and seen.view.node == node]
        return sorted({key for place in places if (key := self._run_of.get(("Pod", place)))})

    def waiting(self, namespace: str, queue: str) -> Iterator[Workload]:
        """What stands in a queue of a namespace, whoever's it is."""
        for view in self._workloads[namespace].values():
            if view.queue == queue and view.pending and view.slice is None:
                yield view

    def workload_of(self, uid: str) -> Key | None:
        """Namespace and name of a Workload; None: it is not known."""
        found = (place for place, seen in self._objects["Workload"].items() if seen.uid == uid)
        return next(found, None)

    def ended_pods(self, key: Key) -> list[Pod]:
        """Pods of the run that are gone since a short while."""
        border = time.monotonic() - _TOMBSTONES
        return [pod for when, pod in self._ended.get(key, ()) if when > border]

    def phases(self) -> dict[str, int]:
        """Number of runs by phase."""
        return Counter(figures.phase for figures in self.figures().values())

    def figures(self) -> dict[Key, Figures]:
        """What metrics show of each run."""
        runs = ((key, seen.view) for key, seen in self._objects[KIND].items())
        return {key: view.figures for key, view in runs if isinstance(view, Run)}

    def _note(self, kind: str, place: Key, document: Manifest) -> list[Key]:
        if kind == "RLTrainingProfile":
            return list(self._objects[KIND])
        if kind == KIND:
            return [place]
        label = (document["metadata"].get("labels") or {}).get(RUN_LABEL)
        if not label:
            return []
        key = (place[0], str(label))
        self._leave(kind, place)
        self._of_run[key].add((kind, place))
        self._run_of[kind, place] = key
        return [key]

    def _leave(self, kind: str, place: Key) -> Key | None:
        """Take an object from its run; returns the run's key."""
        key = self._run_of.pop((kind, place), None)
        if key is not None:
            self._of_run[key].discard((kind, place))
            if not self._of_run[key]:
                del self._of_run[key]
        return key

    def _bury(self, key: Key, pod: Pod) -> None:
        if any(container.ended for container in pod.containers) or pod.reason:
            now = time.monotonic()
            self._ended[key] = [*self._ended.get(key, ())[-9:], (now, replace(pod, gone=True))]
            self._ended.move_to_end(key)
            # Pods outlive their run: what nobody asks for any more is forgotten here.
            while next(iter(self._ended.values()))[-1][0] <= now - _TOMBSTONES:
                self._ended.popitem(last=False)


def place_of(document: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    metadata = document["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


def figures_of_run(document: Mapping[str, Any]) -> Figures:
    """What metrics show of a run."""
    status = document.get("status")
    made = str(document["metadata"].get("creationTimestamp") or "")
    return figures_of(made, status if isinstance(status, dict) else {})


def _owner(document: Manifest) -> str:
    owners: list[dict[str, Any]] = document["metadata"].get("ownerReferences") or []
    return next((str(owner.get("uid")) for owner in owners if owner.get("kind") == KIND), "")


def _view(document: Manifest) -> Run | Ray | Pod | Live | WorkerGroup | Workload | Manifest | str | None:
    kind = document["kind"]
    if kind == "Node":
        return parse_node(document)
    if kind == "Workload":
        return parse_workload(document)
    if kind in ("RayJob", "RayCluster"):
        if _owner(document):
            return parse_ray(document)
        # The RayCluster of a RayJob is KubeRay's business, but for the number of samplers.
        return parse_group(document) if kind == "RayCluster" else None
    if kind == "Pod":
        return parse_pod(document)
    if kind in ("NetworkPolicy", "PodDisruptionBudget", "ResourceClaimTemplate"):
        return parse_live(document) if _owner(document) else None
    metadata = dict(document["metadata"])
    metadata.pop("managedFields", None)
    annotations = metadata.pop("annotations", None) or {}
    if kind != KIND:
        return {**shallow(document), "metadata": metadata}
    document = shallow(document)
    spec, status = document.get("spec"), document.get("status")
    told: Manifest = status if isinstance(status, dict) else {}
    begun = told.get("nulls")
    known = begun if isinstance(begun, list) and all(isinstance(path, str) for path in begun) else None
    if (wrong := size_problem(spec)) is not None:
        # Stored before there was a limit. What it takes to end the attempt that it may have is kept, and no more.
        kept = {"suspend": isinstance(spec, dict) and spec.get("suspend") is True}
        nulls = Nulls(kept, known or [], [])
    else:
        nulls = with_nulls(spec, annotations, known)
    seen: Manifest = {name: document[name] for name in ("apiVersion", "kind", "status") if name in document}
    seen["metadata"] = {name: metadata[name] for name in _OF_RUN if name in metadata}
    seen |= {"spec": nulls.spec, "nulls": nulls.paths, "lateNulls": nulls.late, "wrong": wrong}
    text = json.dumps(seen, separators=(",", ":")).encode()
    return Run(text, figures_of_run(document), bool(told.get("attempts")))
