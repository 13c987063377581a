"""`helm template` as plain objects, and a strict look at their fields with the Kubernetes client's own models."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from big_yaml import yaml_documents
from kubernetes import client

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rltrain"
HELM = ROOT / ".tools" / "bin" / "helm"
NAMESPACE = "rltrain-system"

Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the project's helm."""
    assert HELM.exists(), f"{HELM.relative_to(ROOT)} is missing: run make tools"
    return subprocess.run(
        [str(HELM), *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


@cache
def _render(values: tuple[str, ...], release: str) -> tuple[str, ...]:
    more = [
        part
        for value in values
        for part in ("--set-json" if "=[" in value or "={" in value else "--set", value)
    ]
    done = helm("template", release, str(CHART), "--namespace", NAMESPACE, *more)
    assert done.returncode == 0, done.stderr
    return tuple(part for part in re.split(r"^---$", done.stdout, flags=re.M) if part.strip())


def render(*values: str, release: str = "rltrain") -> list[Manifest]:
    """Objects of the chart with `path=value` values."""
    return [one for text in _render(values, release) for one in yaml_documents(text)]


def refusal(*values: str) -> str:
    """What helm says about values that it must refuse."""
    more = [
        part
        for value in values
        for part in ("--set-json" if "=[" in value or "={" in value else "--set", value)
    ]
    done = helm("template", "rltrain", str(CHART), *more)
    assert done.returncode != 0, "accepted"
    return done.stderr


def one(objects: list[Manifest], kind: str, name: str = "rltrain") -> Manifest:
    """The object of that kind and name."""
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    assert len(found) == 1, [(each["kind"], each["metadata"]["name"]) for each in objects]
    return found[0]


def kinds(objects: list[Manifest]) -> set[str]:
    """All kinds."""
    return {each["kind"] for each in objects}


def model_of(manifest: Manifest) -> str:
    """Name of the client's model of an object: apps/v1 Deployment is V1Deployment."""
    version = manifest["apiVersion"].rpartition("/")[2]
    return f"{version[0].upper()}{version[1:]}{manifest['kind']}"


def wrong_fields(value: Any, kind: str, path: str = "") -> list[str]:
    """Fields of `value` that Kubernetes does not know or that have another type; `kind` as in the client's models."""
    if match := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is no list"]
        return [w for i, item in enumerate(value) for w in wrong_fields(item, match[1], f"{path}[{i}]")]
    if match := re.fullmatch(r"[Dd]ict\[str, (.*)\]", kind):
        if not isinstance(value, dict):
            return [f"{path}: {value!r} is no object"]
        return [w for key, item in value.items() for w in wrong_fields(item, match[1], f"{path}.{key}")]
    if kind in _PLAIN:
        good = isinstance(value, _PLAIN[kind]) and not (kind == "int" and isinstance(value, bool))
        return [] if good else [f"{path}: {value!r} is no {kind}"]
    model = getattr(client.models, kind)
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no {kind}"]
    names = {alias: field for field, alias in model.attribute_map.items()}
    wrong = [f"{path}.{key}: unknown in {kind}" for key in value if key not in names]
    for key in set(value) & set(names):
        wrong += wrong_fields(value[key], model.openapi_types[names[key]], f"{path}.{key}")
    return wrong


_PLAIN: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "datetime": str,
    "IntOrString": (int, str),
}
