"""What the watches have seen of policy services, by service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rl_operator.kube.cache import place_of
from rl_operator.kube.wire import version_of
from rl_operator.model.names import REPLICA, SERVICE_KIND, SERVICE_LABEL, Key, Manifest
from rl_operator.model.needs import Needs
from rl_operator.model.nesting import shallow
from rl_operator.model.parse import (
    controller_of,
    parse_group,
    parse_live,
    parse_pod,
    parse_ray_service,
    service_asked,
)
from rl_operator.model.seen import Live, Pod, WorkerGroup
from rl_operator.model.service import RayService

SERVICE_KINDS: Final = (SERVICE_KIND, "RayService")
"""Kinds that are watched for services alone."""


@dataclass(frozen=True)
class _Cluster:
    """A RayCluster of a RayService."""

    name: str
    group: WorkerGroup | None
    asked: Needs


@dataclass(frozen=True)
class _Seen:
    """One object as it was seen last."""

    kind: str
    uid: str
    version: int
    owner: str
    """Uid of what controls it."""
    view: Manifest | RayService | _Cluster | Pod | Live


def concerns_services(document: Mapping[str, Any]) -> bool:
    """Whether an object is a service's, and not a run's."""
    labels = document["metadata"].get("labels") or {}
    return document["kind"] in SERVICE_KINDS or SERVICE_LABEL in labels


class ServiceStore:
    """The last state of everything that belongs to services. Older news than what is known is dropped."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, Key], _Seen] = {}
        self._of_service: dict[Key, set[tuple[str, Key]]] = defaultdict(set)
        self._service_of: dict[tuple[str, Key], Key] = {}
        self._absent: set[str] = set()

    def put(self, document: Manifest) -> list[Key]:
        """Take over an object; returns the services that it concerns."""
        kind, place, version = document["kind"], place_of(document), version_of(document)
        known = self._objects.get((kind, place))
        if known is not None and known.version >= version:
            return []
        seen = _Seen(
            kind, str(document["metadata"].get("uid", "")), version, _owner(document), _view(document)
        )
        self._objects[kind, place] = seen
        key = self._key(kind, place, document)
        self._leave(kind, place)
        self._of_service[key].add((kind, place))
        self._service_of[kind, place] = key
        return [key]

    def drop(self, kind: str, place: Key, uid: str) -> list[Key]:
        """Forget an object that was deleted; returns the services that it concerned."""
        known = self._objects.get((kind, place))
        if known is None or known.uid != uid:
            return []
        del self._objects[kind, place]
        return self._leave(kind, place)

    def listed(
        self, kind: str, namespace: str | None, there: Collection[str] | None, version: int
    ) -> list[Key]:
        """Forget what is not among the uids that were `there` at `version`, in one namespace or all; returns the services
        that this concerns. None: the cluster does not know the kind."""
        concerned = self.services() if (kind in self._absent) != (there is None) else []
        (self._absent.discard if there is not None else self._absent.add)(kind)
        for (of_kind, place), seen in list(self._objects.items()):
            if of_kind != kind or namespace not in (None, place[0]):
                continue
            if there is None or (seen.uid not in there and seen.version <= version):
                concerned += self.drop(kind, place, seen.uid)
        return concerned

    def serves(self, kind: str) -> bool:
        """Whether the cluster knows this kind, as far as is known."""
        return kind not in self._absent

    def service(self, key: Key) -> Manifest | None:
        """The service as the API server holds it."""
        seen = self._objects.get((SERVICE_KIND, key))
        return seen.view if seen is not None and isinstance(seen.view, dict) else None

    def services(self) -> list[Key]:
        """All services."""
        return [place for kind, place in self._objects if kind == SERVICE_KIND]

    def following(self, run: Key) -> list[Key]:
        """Services that follow a run."""
        return [key for key in self.services() if key[0] == run[0] and self._run_of(key) == run[1]]

    def ray(self, key: Key, uid: str) -> RayService | None:
        """The RayService of the service with this uid."""
        seen = self._objects.get(("RayService", key))
        return (
            seen.view
            if seen is not None and seen.owner == uid and isinstance(seen.view, RayService)
            else None
        )

    def live(self, key: Key, uid: str) -> Iterator[tuple[tuple[str, str], Live]]:
        """What the operator renders for the service with this uid, by kind and name."""
        for kind, name, seen in self._its(key):
            if seen.owner == uid and isinstance(seen.view, RayService | Live):
                yield (kind, name), seen.view if isinstance(seen.view, Live) else seen.view.live

    def pods(self, key: Key, ray: str) -> Iterator[tuple[Pod, str]]:
        """Pods of the RayService with the uid `ray`, each with its RayCluster: by who controls them, as labels are
        anybody's."""
        clusters = {uid: cluster.name for uid, cluster in self._clusters(key, ray)}
        for _, _, seen in self._its(key):
            if isinstance(seen.view, Pod) and seen.view.owner in clusters:
                yield seen.view, clusters[seen.view.owner]

    def groups(self, key: Key, ray: str) -> dict[str, WorkerGroup]:
        """Worker group of the copies in each RayCluster of the RayService with the uid `ray`, by the cluster's name."""
        clusters = [cluster for _, cluster in self._clusters(key, ray)]
        return {one.name: one.group for one in clusters if one.group is not None}

    def asked(self, key: Key, ray: str) -> tuple[Needs, ...]:
        """What each RayCluster of the RayService with the uid `ray` takes."""
        return tuple(cluster.asked for _, cluster in self._clusters(key, ray))

    def _clusters(self, key: Key, ray: str) -> Iterator[tuple[str, _Cluster]]:
        for _, _, seen in self._its(key):
            if isinstance(seen.view, _Cluster) and seen.owner == ray:
                yield seen.uid, seen.view

    def _its(self, key: Key) -> Iterator[tuple[str, str, _Seen]]:
        for kind, place in sorted(self._of_service.get(key, ())):
            yield kind, place[1], self._objects[kind, place]

    def _leave(self, kind: str, place: Key) -> list[Key]:
        """Take an object from its service; returns the service, if it had one."""
        key = self._service_of.pop((kind, place), None)
        if key is None:
            return []
        self._of_service[key].discard((kind, place))
        if not self._of_service[key]:
            del self._of_service[key]
        return [key]

    def _run_of(self, key: Key) -> object:
        spec = (self.service(key) or {}).get("spec")
        source = spec.get("from") if isinstance(spec, Mapping) else None
        return source.get("run") if isinstance(source, Mapping) else None

    def _key(self, kind: str, place: Key, document: Manifest) -> Key:
        if kind in SERVICE_KINDS:
            return place
        return (place[0], str((document["metadata"].get("labels") or {}).get(SERVICE_LABEL)))


def _owner(document: Manifest) -> str:
    kind = document["kind"]
    return controller_of(document, {"RayCluster": "RayService", "Pod": "RayCluster"}.get(kind, SERVICE_KIND))


def _view(document: Manifest) -> Manifest | RayService | _Cluster | Pod | Live:
    kind = document["kind"]
    if kind == "RayService":
        return parse_ray_service(document)
    if kind == "RayCluster":
        spec = document.get("spec") or {}
        return _Cluster(
            str(document["metadata"]["name"]), parse_group(document, REPLICA), service_asked(spec)
        )
    if kind == "Pod":
        return replace(parse_pod(document), attempt=0)
    if kind != SERVICE_KIND:
        return parse_live(document)
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**shallow(document), "metadata": metadata}
