"""A forecast in a process of its own, which takes the driver's loop nothing: `python -m rl_trainer.run.forecasting`.

It gets a run and a profile as JSON, and says `{"forecast": {"now": seconds, "best": a placement} or null,
"processorSeconds": what it took}`. It yields to everybody else, and is killed with what began it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from rl_api import RLTrainingRun
from rl_api.errors import RLTrainError
from rl_api.planner.first import room_as_asked
from rl_api.planner.forecast import Forecast, forecast
from rl_api.planner.plan import Alternative
from rl_api.planner.profile import RunProfile
from rl_trainer.error_text import first_line
from rl_trainer.run.supported import check_supported

NICE = 19


class Forecasting:
    """One that is under way."""

    def __init__(
        self, profile: RunProfile, run: RLTrainingRun, as_many: bool, by_prior: bool = False
    ) -> None:
        """Begins it; for the last two see `forecast` and `room_as_asked`. Raises OSError where no process can be started."""
        document = run.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._asked, self._said, self._errors = (
            tempfile.TemporaryFile()  # noqa: SIM115 - until `kill`
            for _ in range(3)
        )
        asked = {
            "profile": profile.to_document(),
            "run": document,
            "asMany": as_many,
            "byPrior": by_prior,
        }
        self._asked.write(json.dumps(asked).encode())
        self._asked.seek(0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rl_trainer.run.forecasting"],
            stdin=self._asked,
            stdout=self._said,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # a Ctrl-C is for the run, which ends this one
        )

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._process.poll() is not None

    def result(self, timeout: float | None = None) -> tuple[Forecast | None, float]:
        """What it says, and seconds of a processor that it took: waiting for one, it takes nobody anything.

        Raises:
            RLTrainError: it failed.
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.
        """
        status = self._process.wait(timeout)
        if status:
            last = _text(self._errors).strip().splitlines()[-1:]
            raise RLTrainError(last[0] if last else f"its process ended with status {status}")
        said = json.loads(_text(self._said))
        found = said["forecast"]
        if found is not None:
            found = Forecast(found["now"], Alternative.model_validate(found["best"]))
        return found, said["processorSeconds"]

    def kill(self) -> None:
        """Ends it, whether it is done or not."""
        self._process.kill()
        self._process.wait()
        for one in (self._asked, self._said, self._errors):
            one.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def main() -> None:
    """The process."""
    os.nice(NICE)
    try:
        _answer(json.load(sys.stdin))
    except Exception as error:
        sys.exit(first_line(error))


def _answer(asked: Mapping[str, Any]) -> None:
    profile, run = RunProfile.model_validate(asked["profile"]), RLTrainingRun.model_validate(asked["run"])
    room = room_as_asked(run.spec) if asked["byPrior"] else None
    found = forecast(profile, run, check_supported, as_many=asked["asMany"], room=room)
    said = None
    if found is not None:
        fields = set(Alternative.model_fields)
        said = {"now": found.now, "best": found.best.model_dump(mode="json", by_alias=True, include=fields)}
    json.dump({"forecast": said, "processorSeconds": time.process_time()}, sys.stdout)


if __name__ == "__main__":
    main()
