"""Where a release comes from: an in-toto statement with SLSA's predicate, equal for equal releases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BUILD_TYPE = "https://rltrain.dev/release/v1"
BUILDER = "https://rltrain.dev/release/make-release"


def statement(
    subjects: Mapping[str, str],
    *,
    commit: str,
    changed: bool,
    bases: Sequence[str],
    locks: Mapping[str, str],
    parameters: Mapping[str, Any],
) -> str:
    """JSON; `subjects` and `locks`: sha256 by name, `bases`: images as they were named, `changed`: not as committed."""
    source = {"name": "source", "digest": {"gitCommit": commit}}
    if changed:
        source["annotations"] = {"changed": "the working tree had changes that were not committed"}
    value = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(parameters),
                "resolvedDependencies": [
                    source,
                    *map(_base, sorted(set(bases))),
                    *({"name": name, "digest": {"sha256": digest}} for name, digest in sorted(locks.items())),
                ],
            },
            "runDetails": {"builder": {"id": BUILDER}},
        },
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _base(name: str) -> dict[str, Any]:
    image, _, digest = name.partition("@sha256:")
    entry: dict[str, Any] = {"name": "base image", "uri": f"pkg:docker/{image.replace(':', '@', 1)}"}
    if digest:
        return entry | {"digest": {"sha256": digest}}
    return entry | {
        "annotations": {"pinned": "no: the base image has no digest, as on a host without a registry"}
    }
