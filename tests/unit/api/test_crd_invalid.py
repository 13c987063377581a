"""Every manifest of tests/invalid is refused by `rltrain validate --for cluster` with the sentence beside it.

NAME.txt: the first line is `path: sentence` (a part of it). A second line says what the API server does (see
tests/integration/test_crd_rules.py): `operator:` when only the operator can see the mistake, or `apiserver:` and
the API server's words where they are not ours.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_api.crd_gang_rules import GANG_CEL_RULES
from rl_api.crd_rules import PROFILE_CEL_RULES, RUN_RULES
from rl_api.crd_service_rules import SERVICE_CEL_RULES
from rl_api.rules import CLUSTER_RULES, RULES
from rl_api.validation import check_files

FOLDER = Path(__file__).parents[2] / "invalid"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_invalid_manifest_is_refused_with_its_sentence(manifest: Path) -> None:
    expected = manifest.with_suffix(".txt").read_text(encoding="utf-8").splitlines()[0]
    report = check_files([str(manifest)], "cluster")
    assert report.valid == ()
    assert len(report.problems) == 1, "one mistake in each manifest"
    assert report.problems[0].startswith(f"{manifest}: {expected}")


def test_there_are_enough_and_each_has_its_sentence() -> None:
    assert len(MANIFESTS) >= 60
    assert {path.stem for path in MANIFESTS} == {path.stem for path in FOLDER.glob("*.txt")}


def test_marks_are_those_that_are_known() -> None:
    for file in FOLDER.glob("*.txt"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) in (1, 2), file.name
        if len(lines) == 2:
            assert lines[1] == "operator:" or lines[1].startswith("apiserver: "), file.name


def test_every_rule_of_the_api_server_has_its_manifest() -> None:
    first = [path.read_text(encoding="utf-8").partition(": ")[0] for path in FOLDER.glob("*.txt")]
    broken = {re.sub(r"\[\d+\]", "[]", path) for path in first}
    rules = [
        (path, rule)
        for table in (RUN_RULES, PROFILE_CEL_RULES, GANG_CEL_RULES, SERVICE_CEL_RULES)
        for path, them in table.items()
        for rule in them
    ]
    here = {f"{path}{rule.get('fieldPath', '')}" for path, rule in rules if "oldSelf" not in rule["rule"]}
    # A run that serves is valid, and no operator can carry it out, and the parts of a reward share one rule.
    assert here - {"spec.workload", "spec.task.rewards"} <= broken
    assert len(rules) > len(RULES + CLUSTER_RULES)
