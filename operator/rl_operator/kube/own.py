"""Making and deleting what belongs to a run or a service: what is somebody else's is never taken over."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from rl_operator.kube.apply import bring
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError, kind_of
from rl_operator.model.decision import Target
from rl_operator.model.gangs import POD_GROUPS
from rl_operator.model.names import Manifest
from rl_operator.model.parse import hash_of, is_owned

LOG = logging.getLogger("rl_operator")

_BROUGHT: Final = frozenset(
    {"NetworkPolicy", "PodDisruptionBudget", "RayService", "ResourceClaimTemplate", "Workload"}
)
"""Kinds that are brought to what is rendered later on: their fields are ours by apply from birth."""

_POD_GROUPS: Final = frozenset(kind for kinds in POD_GROUPS.values() for kind in kinds)
_REMADE: Final = frozenset({"ConfigMap", *_POD_GROUPS})
"""Kinds that are made anew where there is another one of ours: it is immutable, or pods are placed by it."""


class NameTaken(Exception):
    """An object with a name that we need belongs to somebody else. The message is a sentence."""


def refusal_of(error: ApiError | NameTaken) -> str:
    """Why an object will not be taken as it is, as a sentence for who looks at the status; empty: it may be another time."""
    if isinstance(error, NameTaken):
        return str(error)
    return f"the API server refuses: {error}" if error.status in (400, 403, 404, 422) else ""


async def create_owned(api: Api, manifest: Manifest, uid: str, what: str = "run") -> Manifest | None:
    """Create an object of the run or service (`what`) with this uid; one that is there already is taken only if it is its
    own. Returns it; None: a Secret that was there, which may not be read.

    Raises:
        ApiError: it was refused.
        NameTaken: its name is used by somebody else.
    """
    kind, metadata = kind_of(manifest), manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    brought = kind in _BROUGHT
    while True:
        try:
            return await (api.apply(manifest, new=True) if brought else api.create(manifest))
        except ApiError as error:
            if not error.conflict:
                raise
            if kind == "Secret" and error.reason == "AlreadyExists":
                # Of a begin that was cut short. A driver with another one says so.
                return None
        made = await api.get(kind, namespace, name)
        if not is_owned(made, uid):
            raise NameTaken(
                f"the {what} needs the name {name} for a {kind}, and there is one in namespace {namespace} "
                f"that is not its own; delete that, or give the {what} another name"
            )
        if kind in _REMADE and hash_of(made) != hash_of(manifest):
            # Of a begin that was cut short, and immutable.
            await api.delete(kind, namespace, name, made["metadata"]["uid"])
            continue
        return await bring(api, manifest, made["metadata"]["uid"]) if brought else made


async def delete_owned(api: Api, target: Target, namespace: str, uid: str) -> None:
    """Delete this very object; one whose uid is not known only if it belongs to the run or service with this uid."""
    its = target.uid
    if not its:
        try:
            found = await api.find(target.kind, namespace, target.name)
        except ApiError as error:
            # The chart gives rights for the gang schedulers that it is told of: we have made nothing for the others.
            if error.forbidden and target.kind in _POD_GROUPS:
                return
            raise
        if found is None or not is_owned(found, uid):
            return
        its = found["metadata"]["uid"]
    await api.delete(target.kind, namespace, target.name, its)


async def write_event(api: Api, event: Manifest) -> None:
    """Write an event about a run or a service."""
    try:
        await api.create(event)
    except ApiError as error:
        # A namespace that is being deleted takes no events, and one that is there is enough.
        if error.passing:
            raise
        if error.status not in (403, 404, 409):
            about = {key: event["metadata"][key] for key in ("namespace", "name")}
            LOG.warning("an event cannot be written: %s", error, extra=about)


async def every(work: list[Any]) -> list[Any]:
    """Wait for all, then raise the first error: none is left behind in the background."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
