"""What a run names, against what its profile allows. Pure.

What the profile itself gives is always allowed: its images, its queue, its defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rl_api.allow import DEVICE_VARIABLES, DIGEST, any_matches, place_matches
from rl_api.paths import Path, render_path
from rl_api.problems import Problem
from rl_api.profile import ProfileSpec
from rl_api.run import RunSpec
from rl_api.service import ServiceSpec
from rl_operator.model.names import field_of
from rl_operator.plan.roles import Role


def not_allowed(
    title: str, profile: ProfileSpec, spec: RunSpec, namespace: str, labels: Mapping[str, str] | None
) -> Iterator[Problem]:
    """What the run of a namespace with these labels asks for that the profile, called `title`, does not allow.

    No labels (None): they are not known, and not looked at.
    """
    allow = profile.allow
    yield from _namespace(title, profile, namespace, labels)
    yield from _image(title, profile, spec)
    scheduling = spec.scheduling
    for name, value, names, own in (
        ("priorityClass", scheduling.priority_class, allow.priority_classes, None),
        (
            "workloadPriorityClass",
            scheduling.workload_priority_class,
            allow.workload_priority_classes,
            None,
        ),
        ("queue", scheduling.queue, allow.queues, profile.queue),
    ):
        given = (own, _default(profile, "scheduling", name))
        if value is not None and names is not None and value not in (*names, *given):
            yield _problem(("spec", "scheduling", name), title, value, names)
    sources = allow.model_sources
    judge = spec.given_task.reward_model if spec.given_task is not None else None
    for field, model in ((("model",), spec.given_model), (("task", "rewardModel"), judge)):
        if model is not None and sources is not None and not place_matches(sources, model.source):
            yield _problem(("spec", *field, "source"), title, model.source, sources)
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    place, places = storage.s3 if storage is not None else None, allow.storage.s3
    given = _default(profile, "checkpoint", "storage", "s3")
    if place not in (None, given) and places is not None and not place_matches(places, place):
        yield _problem(("spec", "checkpoint", "storage", "s3"), title, place, places)
    server = spec.sampler.endpoint
    if server is not None and not allow.endpoints_at(server.url):
        addresses = [rule.url for rule in allow.endpoints]
        yield _problem(("spec", "sampler", "endpoint", "url"), title, server.url, addresses)
    yield from _environment(title, profile, spec)
    if allow.isolation == "strict":
        kind, task = spec.trainer.kind, spec.given_task
        if kind != "rltrain":
            yield _problem(("spec", "trainer", "kind"), title, kind, ("rltrain",))
        elif task is not None and task.isolation != "strict":
            yield _problem(("spec", "task", "isolation"), title, task.isolation, ("strict",))


def service_not_allowed(
    title: str, profile: ProfileSpec, spec: ServiceSpec, namespace: str, labels: Mapping[str, str] | None
) -> Iterator[Problem]:
    """What the service of a namespace with these labels asks for that the profile does not allow; the same as of a run."""
    yield from _namespace(title, profile, namespace, labels)
    yield from _image(title, profile, spec)
    source, sources = spec.source.checkpoint, profile.allow.model_sources
    if source is not None and sources is not None and not place_matches(sources, source):
        yield _problem(("spec", "from", "checkpoint"), title, source, sources)
    named = _listed_secrets(("spec", "secrets"), spec.secrets)
    if spec.auth.secret is not None:
        named = [*named, (("spec", "auth", "secret"), spec.auth.secret)]
    yield from _secrets(title, profile, named)


def _namespace(
    title: str, profile: ProfileSpec, namespace: str, labels: Mapping[str, str] | None
) -> Iterator[Problem]:
    """The namespace, by its labels."""
    selector = profile.allow.namespaces
    if selector is not None and labels is not None and not selector.matches(labels):
        wanted = f"namespaces with the labels {selector}"
        yield Problem(
            ("metadata", "namespace"), f"found {namespace!r}, allowed by {title}: {wanted}", (("spec",),)
        )


def _image(title: str, profile: ProfileSpec, spec: RunSpec | ServiceSpec) -> Iterator[Problem]:
    """The image that a run names: one of the patterns, and by digest where that is asked for."""
    image, rules = spec.image, profile.allow.images
    if not names_image(profile, spec):
        return
    assert image is not None
    if rules.patterns is not None and not any_matches(rules.patterns, image):
        yield _problem(("spec", "image"), title, image, rules.patterns)
    elif rules.digest_required and not re.fullmatch(f".*{DIGEST}", image):
        sentence = f"found {image!r}, allowed by {title}: an image with its digest, such as image@sha256:..."
        yield Problem(("spec", "image"), sentence)


def names_image(profile: ProfileSpec, spec: RunSpec | ServiceSpec) -> bool:
    """Whether a run or a service names an image that is not the profile's own."""
    return spec.image not in (None, profile.images.cpu, profile.images.gpu, profile.defaults.get("image"))


def _environment(title: str, profile: ProfileSpec, spec: RunSpec) -> Iterator[Problem]:
    """Variables that the run sets, and Secrets that it names."""
    names = profile.allow.environment.names
    for index, one in enumerate(spec.trainer.env):
        path: Path = ("spec", "trainer", "env", index, "name")
        if names is not None:
            if not any_matches(names, one.name):
                yield _problem(path, title, one.name, names)
        elif any_matches(DEVICE_VARIABLES, one.name):
            sentence = f"found {one.name!r}, allowed by {title}: names by which no devices are handed out"
            yield Problem(path, sentence)
    of_task = spec.given_task.secrets if spec.given_task is not None else ()
    server = spec.sampler.endpoint
    of_server = server.secret if server is not None else None
    named = [
        *_listed_secrets(("spec", "secrets"), spec.secrets),
        *_listed_secrets(("spec", "task", "secrets"), of_task),
        *([(("spec", "sampler", "endpoint", "secret"), of_server)] if of_server is not None else []),
    ]
    yield from _secrets(title, profile, named)


def _listed_secrets(path: Path, names: Sequence[str]) -> list[tuple[Path, str]]:
    return [((*path, index), name) for index, name in enumerate(names)]


def _secrets(title: str, profile: ProfileSpec, named: Iterable[tuple[Path, str]]) -> Iterator[Problem]:
    """Secrets that are named, by where they stand."""
    allowed = profile.allow.environment.secrets
    for path, name in named if allowed is not None else ():
        if allowed is not None and not any_matches(allowed, name):
            yield _problem(path, title, name, allowed)


def idle_on_accelerators(roles: Sequence[Role]) -> Iterator[Problem]:
    """Roles whose pods ask for no accelerator in pools that have some: they would use nodes that others wait for."""
    for role in roles:
        for pool in role.pools if not role.accelerators else ():
            if pool.accelerator is not None and not pool.without_accelerators:
                yield Problem(
                    (*field_of(role.name), "pools"),
                    f"found pool {pool.name} for pods of the {role.name} that ask for no accelerator, allowed there: "
                    f"pods with 1 or more {pool.accelerator}, as the pool does not say withoutAccelerators",
                )


def wrong_claim(title: str, profile: ProfileSpec, path: Path, claim: str, storage_class: str | None) -> str:
    """Why the run may not use the claim that it names at `path`, which has this storage class; empty: it may."""
    classes = profile.allow.storage.claim_classes
    given = _default(profile, *map(str, path[1:]))
    if classes is None or claim == given or any_matches(classes, storage_class or ""):
        return ""
    found = f"storage class {storage_class!r}" if storage_class else "no storage class"
    return (
        f"{render_path(path)}: found {claim!r} with {found}, allowed by {title}: "
        f"claims of {_listed(classes)}. {ask(profile)}"
    )


def ask(profile: ProfileSpec) -> str:
    """Whom to ask for more, as a sentence."""
    return f"Ask {profile.contact} for more."


def _problem(path: Path, title: str, value: str, allowed: Sequence[str]) -> Problem:
    return Problem(path, f"found {value!r}, allowed by {title}: {_listed(allowed)}")


def _listed(allowed: Sequence[str]) -> str:
    return ", ".join(allowed) or "none"


def _default(profile: ProfileSpec, *path: str) -> Any:
    """What the profile gives to runs that do not say it."""
    found: Any = profile.defaults
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found
