"""Evaluations and probes of the control application: both are begun by the operator, and end by themselves.

An evaluation has a process of its own on the head, which has no traffic; a probe asks the replicas as clients do.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve

from rl_api.errors import (
    CheckpointError,
    DeadlineExceeded,
    InvalidConfig,
    ModelError,
    RewardError,
    RLTrainError,
    TaskError,
)
from rl_serve.arguments import Arguments, PolicyRef
from rl_serve.faults import passes
from rl_serve.gate.criteria import Gate
from rl_serve.gate.evaluate import TIMEOUT, evaluate
from rl_serve.gate.heldout import bring_run
from rl_serve.gate.judge import Measured, judge
from rl_serve.gate.probe import Probe, Question, read_probe
from rl_serve.keeper import Keeper
from rl_serve.shelf import Shelf
from rl_serve.status import brief
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.vllm_needs import SERVICE, EngineKind, VllmOptions
from rl_trainer.storage.remote_folder import is_s3

logger = logging.getLogger(__name__)

# The custom resource that the head is marked with. It offers no CPUs to Ray: those it has are for what runs so.
HEAD: Final = {"head": 0.001}
# An evaluation that could not be done is done again when it is asked for again, but not at once.
_AGAIN_SECONDS: Final = 30.0
# Beyond the evaluation's own deadline: for loading a model, which is not interrupted.
_SPARE_SECONDS: Final = 600.0
# What asking again does not change: the gate, the task or its scorer cannot be used.
_SETTLED: Final = (InvalidConfig, TaskError, RewardError)
_PROBE_SECONDS: Final = 1800.0
# Evaluations, and probes, that are remembered; besides that of what serves.
_KEPT: Final = 4
_PROBE_CLIENTS: Final = 4
_LOOK_SECONDS: Final = 0.5


@dataclass
class Evaluation:
    """One candidate before the gate.

    Attributes:
        key: of what was asked: gate, serving policy and the probe's questions, as text.
        version: of the candidate.
        serving: digest of the policy that it is compared with; None: with none.
        gate: as it came.
        state: running; passed or failed: a verdict about the candidate; error: there is none.
        message: one sentence.
        retryable: with state error, whether there may be one another time.
        report: see `Report.to_json`; None: there is none.
        ended: monotonic seconds.
    """

    key: str
    version: str
    serving: str | None
    gate: Any
    state: str = "running"
    message: str = "the candidate is evaluated"
    retryable: bool = False
    report: dict[str, Any] | None = None
    ended: float = 0.0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        if self.task is not None:
            self.task.cancel()

    @property
    def shown(self) -> dict[str, Any]:
        """What the status has of it; `body` has all."""
        return {
            "state": self.state,
            "message": brief(self.message),
            "retryable": self.retryable,
            "serving": self.serving,
            "gate": self.gate,
        }

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self.shown, "report": self.report}


class Trials:
    """All of them; used on the event loop of the control application.

    Args:
        arguments: of the service.
        shelf: where policies come from.
        keeper: told which are needed.
        cache: folder on the head.
        application, deployment: names of the replicas' ones.
    """

    def __init__(
        self,
        arguments: Arguments,
        shelf: Shelf,
        keeper: Keeper,
        cache: Path,
        application: str,
        deployment: str,
    ) -> None:
        self._arguments, self._shelf, self._keeper, self._cache = arguments, shelf, keeper, cache
        self._application, self._deployment = application, deployment
        self.evaluations: dict[str, Evaluation] = {}
        self.probes: dict[str, dict[str, Any]] = {}
        self._measured: Evaluation | None = None
        self._probing: dict[str, asyncio.Task[None]] = {}
        # The head is small: one model, or two of one evaluation, at a time.
        self._turn = asyncio.Lock()

    # -- evaluations ---------------------------------------------------------------------------------------------

    def evaluate(self, candidate: PolicyRef, serving: PolicyRef | None, gate: Gate, said: Any) -> Evaluation:
        """Begin, unless the same was asked before; `said`: the gate as it came."""
        digest = candidate.digest or ""
        key = json.dumps(
            [said, None if serving is None else serving.model_dump(), self._probed(gate)], sort_keys=True
        )
        found = self.evaluations.get(digest)
        if found is not None and found.key == key:
            late = found.state == "error" and time.monotonic() - found.ended > _AGAIN_SECONDS
            if not late:
                return found
        if found is not None:
            found.give_up()
            del self.evaluations[digest]  # the newest one comes last
        made = self.evaluations[digest] = Evaluation(
            key, candidate.version, None if serving is None else serving.digest, said
        )
        made.task = asyncio.create_task(self._evaluate(made, candidate, serving, gate))
        return made

    def forget(self, serving: Collection[str]) -> None:
        """All evaluations and probes but the newest, those of versions that are `serving`, and the one that is measured."""
        for digest, one in list(self.evaluations.items())[:-_KEPT]:
            if one.version not in serving and one is not self._measured:
                one.give_up()
                del self.evaluations[digest]
        for version in list(self.probes)[:-_KEPT]:
            if version not in serving:
                del self.probes[version]

    async def _evaluate(
        self, made: Evaluation, candidate: PolicyRef, serving: PolicyRef | None, gate: Gate
    ) -> None:
        try:
            async with self._turn:
                self._measured = made
                try:
                    report = await self._measure(candidate, serving, gate)
                finally:
                    self._measured = None
            made.report, made.message = report, report["message"]
            made.state = "passed" if report["passed"] else "failed"
        except RLTrainError as error:
            made.state, made.message = "error", str(error)
            made.retryable = not isinstance(error, _SETTLED)
        except Exception as error:  # of Ray: the process was killed, for instance
            logger.exception("the evaluation of %s has failed", candidate.version)
            made.state, made.retryable = "error", True
            made.message = f"the evaluation has failed: {type(error).__name__}: {first_line(error)}"
        made.ended = time.monotonic()

    async def _measure(self, candidate: PolicyRef, serving: PolicyRef | None, gate: Gate) -> dict[str, Any]:
        """The gate's report. Raises RLTrainError where there can be none."""
        folder = self._arguments.source.folder
        run = None if folder is None else Path(folder)
        if folder is not None and is_s3(folder):
            run = await asyncio.to_thread(bring_run, folder, self._cache / "run") if gate.held_out else None
        probe = await asyncio.to_thread(self._probe) if gate.probe else None
        try:
            ours = await asyncio.to_thread(self._bring, candidate, candidate=True)
        except (CheckpointError, ModelError) as error:
            if passes(error):
                raise
            return judge(gate, Measured(problem=str(error))).to_json()
        theirs, lost = None, ""
        try:
            if serving is not None:
                theirs = await asyncio.to_thread(self._bring, serving, candidate=False)
        except (CheckpointError, ModelError) as error:
            if passes(error) and not _is_deleted(serving):
                raise
            lost = f"; alone, as what serves cannot be read any more: {error}"
        alone = ray.remote(num_cpus=0, resources=HEAD, max_calls=1, max_retries=0)
        # The head has no GPU: with vLLM on GPUs it is our own engine that measures.
        arguments = self._arguments
        engine = arguments.engine if not arguments.resources.gpus else "torch"
        asked = alone(_in_a_process).remote(ours, theirs, gate, probe, run, engine)
        try:
            async with asyncio.timeout(TIMEOUT + _SPARE_SECONDS):
                report, fault = await asked
        except TimeoutError:
            raise DeadlineExceeded(
                f"evaluating {candidate.version} took longer than {TIMEOUT + _SPARE_SECONDS:.0f} s on the head"
            ) from None
        finally:
            ray.cancel(asked, force=True)  # passed over where it has ended
        if fault is not None:
            raise fault
        return {**report, "message": f"{report['message']}{lost}"}

    def _bring(self, policy: PolicyRef, *, candidate: bool) -> Path:
        self._keeper.ask(policy, candidate=candidate)
        return self._shelf.folder(policy)

    # -- probes --------------------------------------------------------------------------------------------------

    def probe(self, version: str) -> None:
        """Ask the replicas all questions, as soon as they answer with `version`; one probe of it at a time."""
        if version not in self._probing:
            task = self._probing[version] = asyncio.create_task(self._ask_all(version))
            task.add_done_callback(lambda _: self._probing.pop(version, None))

    async def _ask_all(self, version: str) -> None:
        try:
            probe = await asyncio.to_thread(self._probe)
            handle = serve.get_deployment_handle(self._deployment, self._application)
            room, tokens = asyncio.Semaphore(_PROBE_CLIENTS), self._arguments.limits.new_tokens
            most = min(probe.max_new_tokens, tokens)

            async def right(number: int, question: Question) -> bool:
                async with room:
                    text = await _answer(handle.answer.remote, question, most, version)
                return probe.right(number, text)

            async with asyncio.timeout(_PROBE_SECONDS):
                marks = await asyncio.gather(
                    *(right(number, question) for number, question in enumerate(probe.questions))
                )
            self.probes.pop(version, None)  # the newest one comes last
            self.probes[version] = {"score": sum(marks) / len(marks), "n": len(marks)}
        except Exception as error:  # the operator asks again
            logger.warning(
                "the probe of %s has no score: %s", version, first_line(error) or type(error).__name__
            )

    def _probed(self, gate: Gate) -> str | None:
        """Digest of the probe's questions, which may change; None: they are not asked, or cannot be read."""
        found = self._arguments.probe if gate.probe else None
        try:
            return None if found is None else hashlib.sha256(Path(found.file).read_bytes()).hexdigest()
        except OSError:  # said by who reads them
            return None

    def _probe(self) -> Probe:
        found = self._arguments.probe
        if found is None:
            raise RLTrainError("the service has no probe")
        return read_probe(Path(found.file), found.scorer)


async def _answer(
    ask: Callable[..., Awaitable[Mapping[str, Any]]], question: Question, tokens: int, version: str
) -> str:
    """The text with which `version` answers; another one's is no answer."""
    content = question.content if isinstance(question.content, str) else list(question.content)
    while True:
        found = await ask(content, tokens)
        if found["version"] == version and found["text"] is not None:
            return str(found["text"])
        await asyncio.sleep(_LOOK_SECONDS)


def _in_a_process(
    candidate: Path,
    serving: Path | None,
    gate: Gate,
    probe: Probe | None,
    run: Path | None,
    engine: EngineKind,
) -> tuple[dict[str, Any] | None, RLTrainError | None]:
    """The report, or why there is none. Whatever else runs on the head comes first."""
    os.nice(10)
    try:
        report = evaluate(
            candidate,
            serving,
            gate,
            probe,
            run=run,
            timeout=TIMEOUT,
            engine=engine,
            vllm=VllmOptions(asker=SERVICE),
        )
        return report.to_json(), None
    except RLTrainError as error:
        # Without what it came from, which may not travel.
        return None, (InvalidConfig if isinstance(error, _SETTLED) else RLTrainError)(str(error))


def _is_deleted(policy: PolicyRef | None) -> bool:
    """Whether a checkpoint is gone from where others are: its disk is there."""
    place = Path(policy.source) if policy is not None else Path()
    return place.is_absolute() and place.parent.is_dir() and not place.exists()
