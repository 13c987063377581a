"""Apply the default RLTrainingProfile as soon as the API server serves its kind. Standard library only.

python apply_profile.py FILE; a change that someone made to the profile by hand is kept.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT_FOLDER", "/var/run/secrets/kubernetes.io/serviceaccount"))
SERVER = os.environ.get("KUBERNETES_URL", "https://kubernetes.default.svc")
DEADLINE_SECONDS = float(os.environ.get("DEADLINE_SECONDS", "120"))
PAUSE_SECONDS = 1.0


def apply(profile: dict) -> tuple[int, str]:
    """Status code and text of the API server's answer to a server-side apply of `profile`."""
    name = profile["metadata"]["name"]
    path = f"/apis/{profile['apiVersion']}/rltrainingprofiles/{name}?fieldManager=rltrain-chart"
    request = urllib.request.Request(
        SERVER + path,
        data=json.dumps(profile).encode(),
        method="PATCH",
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
            "Content-Type": "application/apply-patch+yaml",
        },
    )
    authority = ACCOUNT / "ca.crt"
    context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else None
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def main(file: str) -> int:
    """Apply the profile of `file`, again until the deadline where another try may help; the exit code."""
    profile = json.loads(Path(file).read_text(encoding="utf-8"))
    name = profile["metadata"]["name"]
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        code, text = apply(profile)
        if code in (200, 201):
            print(f"RLTrainingProfile {name} is {'made' if code == 201 else 'up to date'}")
            return 0
        if code == 409:
            print(f"RLTrainingProfile {name} was changed by hand and is left as it is: {text}")
            return 0
        # 404: the kind is not served yet; 403: the role's binding is not seen yet; 0 and 5xx: no answer.
        if code not in (0, 403, 404, 429) and code < 500:
            print(f"RLTrainingProfile {name} is refused by the API server ({code}): {text}", file=sys.stderr)
            return 1
        if time.monotonic() >= end:
            print(
                f"RLTrainingProfile {name} is not applied after {DEADLINE_SECONDS:.0f} s; the last answer of "
                f"{SERVER} was {code}: {text}. Is the kind there (kubectl get crd rltrainingprofiles.rltrain.dev)?",
                file=sys.stderr,
            )
            return 1
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
