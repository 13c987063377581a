"""What becomes of a policy that has just taken the place of another: it is watched, and may go back."""

from __future__ import annotations

import pytest
from service_worlds import ServiceStory, checkpoint

from rl_operator.decide.promotion import ROLL_OUT
from rl_operator.model.service import Evaluation, VersionFigures

PROBE = {
    "gate": {"probe": {"configMap": "probe", "maxDrop": 0.1}},
    "rollback": {"window": "60s", "minRequests": 10},
}


def watched(story: ServiceStory, step: int = 30) -> str:
    """The story with another policy that is being watched; its version."""
    story.checkpoints.insert(0, checkpoint(step))
    story.evaluations[checkpoint(step).digest] = Evaluation("passed", "good")
    story.looks(4)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "Watching"
    return checkpoint(step).version


def test_errors_take_it_back_and_say_so() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "60s", "minRequests": 10}}})
    story.served(20)
    story.figures[checkpoint(20).version] = VersionFigures(requests=1000, errors=10, token_seconds=0.01)
    version = watched(story)
    story.figures[version] = VersionFigures(requests=9, errors=9)
    story.look()
    assert story.told == version  # too few to know
    story.figures[version] = VersionFigures(requests=100, errors=4, token_seconds=0.02)
    story.looks(3)
    assert story.told == checkpoint(20).version
    assert story.status.serving is not None
    assert story.status.serving.step == 20
    last = story.status.promotions[-1]
    assert (last.result, last.message) == (
        "rolledBack",
        "4 of 100 requests failed (4.0%), allowed: at most 3.0%",
    )
    assert story.reasons[-2:] == ["RollingBack", "RolledBack"]
    assert checkpoint(30).digest in story.status.refused
    story.looks(5)
    assert story.status.candidate is None


def test_after_the_window_it_stays() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "20s"}}})
    story.served(20)
    version = watched(story)
    story.looks(12)
    assert story.status.candidate is None
    story.figures[version] = VersionFigures(requests=100, errors=100)
    story.looks(3)
    assert story.told == version


def test_a_watch_waits_for_copies_that_are_made_anew_but_not_for_ever() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "20s"}}})
    story.served(20)
    version = watched(story)
    story.missing = True
    story.looks(30)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "Watching"
    story.look(ROLL_OUT.total_seconds())
    assert story.status.candidate is None
    assert (story.told, story.status.refused) == (version, [])


@pytest.mark.parametrize(("deaths", "state"), [(2, "Watching"), (3, "RollingBack")])
def test_a_policy_of_which_copies_die_goes_back(deaths: int, state: str) -> None:
    story = ServiceStory()
    story.served(20)
    story.figures[watched(story)] = VersionFigures(requests=1, deaths=deaths)
    story.look()
    assert story.status.candidate is not None
    assert story.status.candidate.state == state
    if state == "RollingBack":
        assert story.status.candidate.message == "copies died with it 3 times, allowed: fewer than 3"
        assert story.status.refused == []  # it may be the nodes: once more
        story.looks(6)
        assert story.status.refused == [checkpoint(30).digest]
        assert story.told == checkpoint(20).version


def test_the_first_policy_is_not_watched_for_ever() -> None:
    story = ServiceStory({"promotion": PROBE})
    story.checkpoints = [checkpoint(20)]
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "good")
    story.looks(5)
    assert story.status.candidate is not None
    story.missing = True
    story.looks(2, ROLL_OUT.total_seconds())
    assert story.status.candidate is None
    assert story.told == checkpoint(20).version


def test_a_way_back_that_does_not_end_goes_on_and_others_may_come() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "60s", "minRequests": 10}}})
    story.served(20)
    version = watched(story)
    story.figures[version] = VersionFigures(requests=100, errors=100)
    story.look()
    story.obeys, story.error = False, "its checkpoint is gone"
    story.look(ROLL_OUT.total_seconds() + 1)
    last = story.status.promotions[-1]
    assert (last.version, last.result) == (version, "stuck")
    assert last.message == (
        f"it was to go back to {checkpoint(20).version}, which took more than 15 minutes: its checkpoint is gone"
    )
    assert story.reasons[-1] == "RollBackStuck"
    assert story.condition("Promoting")[1] == "Stuck"
    story.looks(3)
    assert story.told == checkpoint(20).version, "nobody is sent to the one that was worse"
    story.obeys = True
    story.served(40)
    assert story.told == checkpoint(40).version


def test_the_probe_is_asked_again_where_the_traffic_is() -> None:
    story = ServiceStory({"promotion": PROBE})
    story.checkpoints = [checkpoint(20)]
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "good")
    story.looks(5)
    assert story.last.wish is not None
    assert (story.last.wish.path, story.last.wish.body) == ("probe", {"version": checkpoint(20).version})
    story.figures[checkpoint(20).version] = VersionFigures(probe=0.9)
    story.looks(40)
    assert story.status.candidate is None
    assert story.status.serving is not None
    assert story.status.serving.probe == 0.9
    del story.figures[checkpoint(20).version]  # nobody asked for a while: what is known of it stays
    version = watched(story)
    story.figures[version] = VersionFigures(probe=0.7)
    story.looks(3)
    assert story.told == checkpoint(20).version
    assert story.status.promotions[-1].message == (
        "it scores 0.700 in the probe, allowed: at most 0.1 less than the one before, 0.900"
    )
