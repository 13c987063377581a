"""A reward function that looks for what is not its own, as code of a team's could. A Secret brings it to the cluster.

It raises what it has found, so that the run fails with it. Where it finds nothing it gives a reward.
"""

from __future__ import annotations

import functools
import glob
import os
import urllib.error
import urllib.request
from typing import Any

NAMES = (b"RAY_AUTH_TOKEN=", b"RLTRAIN_STATUS_TOKEN", b"RLTRAIN_FENCE=", b"HUB_KEY=")
FILES = (
    "/etc/rltrain-token",
    "/etc/rltrain",
    "/var/lib/rltrain",
    "/var/run/secrets/kubernetes.io/serviceaccount",
    "/tmp/ray",
    *glob.glob("/etc/rltrain-secrets/*/HUB_KEY"),
)


def look(prompt: dict[str, Any], completion: str, answer: str) -> float:
    """A quarter, and a half more for the right answer."""
    found = everything()
    if found:
        raise RuntimeError(f"found as user {os.getuid()}: {', '.join(found)}")
    if os.environ.get("JUDGE_KEY") != "of-the-judge":
        raise RuntimeError("its own key is missing")
    return 0.25 + 0.5 * (completion.strip() == answer)


def something_in(place: str) -> bool:
    """Whether a folder holds anything, or may not be looked into."""
    try:
        return bool(os.listdir(place))
    except FileNotFoundError:
        return False
    except OSError:
        return True


@functools.cache
def everything() -> list[str]:
    """What there is, in words."""
    seen, found = 0, [name.decode() for name in NAMES if name.rstrip(b"=").decode() in os.environ]
    for place in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(place, "rb") as file:
                content = file.read()
        except OSError:
            continue
        seen += 1
        found += [f"{name.decode()} in {place}" for name in NAMES if name in content]
    if not seen:
        found.append("no process at all, not even its own")
    # The image has some of these as empty folders.
    found += [place for place in FILES if os.path.isfile(place) or something_in(place)]
    try:
        with urllib.request.urlopen("http://127.0.0.1:8265/api/jobs/", timeout=5) as answered:
            found.append(f"Ray's jobs, which it answers with {answered.status}")
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            found.append(f"Ray's jobs, which it answers with {error.code}")
    except OSError:
        pass  # a sampler's pod has no dashboard
    return found
