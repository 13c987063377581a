from __future__ import annotations

from rl_operator.model.names import (
    attempt_name,
    earlier_secret_name,
    folder_name,
    labels_of,
    owned,
    secret_name,
    shorten,
)


class TestNames:
    def test_short_ones_stay(self) -> None:
        assert attempt_name("quickstart", 12) == "quickstart-12"
        assert secret_name("quickstart", "12345678-90ab", 12) == "quickstart-12-12345678"
        assert earlier_secret_name("quickstart") == "quickstart-status"

    def test_long_ones_keep_apart(self) -> None:
        one, other = attempt_name("a" * 46 + "x", 1), attempt_name("a" * 46 + "y", 1)
        assert len(one) == len(other) == 47
        assert one != other
        assert one.endswith("-1")
        assert attempt_name("a" * 47, 123)[-4:] == "-123"

    def test_the_limit_itself_is_not_too_long(self) -> None:
        assert shorten("a" * 17, 17) == "a" * 17
        assert shorten("a" * 18, 17) == "a" * 10 + "-c926de"

    def test_no_hyphen_before_the_hash(self) -> None:
        assert "--" not in shorten("a" * 9 + "-" * 9, 17)

    def test_a_later_run_of_the_same_name_has_another_folder(self) -> None:
        assert folder_name("sums", "12345678-90ab") == "sums-12345678"


def test_what_every_object_of_a_run_carries() -> None:
    labels = labels_of("sums", 2, "learner")
    assert labels == {
        "app.kubernetes.io/name": "rltrain",
        "app.kubernetes.io/managed-by": "rltrain-operator",
        "rltrain.dev/run": "sums",
        "rltrain.dev/attempt": "2",
        "rltrain.dev/role": "learner",
    }
    assert owned("sums", "team-a", "u-1", "sums-2", labels) == {
        "name": "sums-2",
        "namespace": "team-a",
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": "rltrain.dev/v1alpha1",
                "kind": "RLTrainingRun",
                "name": "sums",
                "uid": "u-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
