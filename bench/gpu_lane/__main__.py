"""Measures on this machine's GPUs what rltrain does there, and writes tables: `make gpu-lane`, without any cluster.

Stages, each in a process of its own with a deadline:
  machine    devices, driver, versions, a bare matrix product and a copy
  learner    training steps on 1 to n devices (FSDP2), tokens/s, memory against `rltrain plan`
  engine     our engine and vLLM: tokens/s, and how long new weights stop them, by each way they can come
  divided    vLLM over several devices, in one pod and in two: tokens/s, and log-probs against the learner's
  agreement  log-probs of the engines against the learner's, before and after training steps
  turns      learner and engines give the device back and take it again: memory, seconds, the same bits afterwards
  scoring    a model that scores: texts/s, values against those on cores, memory against `rltrain plan`
  kernels    attention and log-probs against plain formulas: speed, memory, error
  loop       whole runs: `rltrain run`, and its parts in turns on one GPU
  peer       TRL with vLLM on the same GPU
What cannot run here says why, and the lane goes on. Exit status: 0, nothing failed; 1, something did or missed its target;
2, the options are wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from peers import PeerError

from gpu_lane.child import BENCH, ROOT, Child, ChildFailed
from gpu_lane.job import Findings, Job, Skipped
from gpu_lane.machine import driver_version, gpu_names
from gpu_lane.report import NAME, Report
from gpu_lane.shapes import SHAPES

STAGES = (
    "machine",
    "learner",
    "engine",
    "divided",
    "agreement",
    "turns",
    "scoring",
    "kernels",
    "loop",
    "peer",
)
WITHOUT_MODEL = ("machine", "kernels")
# To end what has not come to an end by itself.
_SLACK = 5.0
EXAMPLES = """examples:
  make gpu-lane                                             everything, in environments that it makes
  make gpu-lane ARGS="--shape 0.5b --only learner,engine"   some of it
  make gpu-lane ARGS="--resume"                             what has not succeeded yet
  scripts/gpu-lane --device cpu --shape tiny                a minute without any GPU
  PYTHON=python3 scripts/gpu-lane --python python3          with what is installed for python3, and nothing else
"""


def options(arguments: list[str]) -> argparse.Namespace:
    """What the command line says, checked."""
    parser = argparse.ArgumentParser(
        prog="gpu-lane",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=["auto", "cuda", "cpu"], default="auto", help="auto: GPUs where there are some"
    )
    parser.add_argument(
        "--shape", default=None, help=f"of {', '.join(SHAPES)}; default: 0.5b,7b on GPUs, tiny on CPUs"
    )
    parser.add_argument(
        "--only", default=",".join(STAGES), metavar="STAGE,...", help="these; others stay as they are"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what has succeeded before")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="of products; default: bfloat16, on CPUs float32"
    )
    parser.add_argument(
        "--deadline", type=float, default=900.0, metavar="SECONDS", help="of each stage (900)"
    )
    parser.add_argument("--out", type=Path, default=BENCH / "results" / NAME, help="folder of tables and log")
    parser.add_argument(
        "--scratch",
        type=Path,
        help="folder for models, kept for the next time; default: one that goes (7b: 15 GB)",
    )
    parser.add_argument(
        "--python",
        help="interpreter that has torch, and vLLM if wanted; default: installed on GPUs, on CPUs this one",
    )
    parser.add_argument(
        "--peer-python", help="interpreter that has TRL; default: installed on GPUs, or --python's"
    )
    found = parser.parse_args(arguments)
    found.stages = _chosen(parser, "--only", found.only, STAGES)
    if found.device == "auto":
        found.device = "cuda" if gpu_names() else "cpu"
    default = "0.5b,7b" if found.device == "cuda" else "tiny"
    found.shapes = _chosen(parser, "--shape", found.shape or default, tuple(SHAPES))
    if found.deadline <= 0:
        parser.error(f"--deadline: found {found.deadline:g}, allowed: more than 0 seconds")
    if found.device == "cuda" and not gpu_names():
        parser.error("--device: found cuda, but nvidia-smi shows no GPU here; allowed: cpu")
    for name in ("python", "peer_python"):
        if (value := getattr(found, name)) is not None and shutil.which(value) is None:
            parser.error(
                f"--{name.replace('_', '-')}: found {value!r}, which is no program here; allowed: a Python"
            )
    return found


def _chosen(parser: argparse.ArgumentParser, option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Names between commas, in the order of `known`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            parser.error(f"{option}: found {name!r}, allowed: {', '.join(known)}")
    if not names:
        parser.error(f"{option}: found nothing, allowed: {', '.join(known)}")
    return [name for name in known if name in names]


class Lane:
    """One call of the command."""

    def __init__(self, chosen: argparse.Namespace, scratch: Path) -> None:
        self._chosen, self._scratch = chosen, scratch
        self._start = time.monotonic()
        self._log = chosen.out / f"{NAME}.log"
        self._gpus = gpu_names() if chosen.device == "cuda" else []
        self._dtype: Literal["bfloat16", "float32"] = chosen.dtype or (
            "bfloat16" if self._gpus else "float32"
        )
        meta = {
            "device": f"{len(self._gpus)} x {self._gpus[0]}"
            if self._gpus
            else f"cpu ({os.cpu_count()} cores)",
            "dtype": self._dtype,
            **({"driver": driver_version()} if self._gpus else {}),
        }
        only_some = chosen.resume or chosen.stages != list(STAGES)
        self.report = Report(chosen.out, meta, earlier=only_some)
        if not only_some:
            self._log.unlink(missing_ok=True)
        self._peer_problem = ""
        self._python, self._peer_python = self._interpreters()

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self._start:5.0f} s] {text}", flush=True)

    def run(self) -> bool:
        """All stages of all shapes; whether nothing failed."""
        for shape in self._chosen.shapes:
            model = self._job(shape).model
            tried = False
            for stage in self._chosen.stages:
                if stage == "machine" and shape != self._chosen.shapes[0]:
                    continue  # it is the same machine
                if self._chosen.resume and self.report.has(stage, shape):
                    self.say(f"{stage} {shape}: is there")
                    continue
                if not model.is_dir() and not tried:
                    tried = True
                    self._stage("shapes", shape)
                if stage in WITHOUT_MODEL or model.is_dir():
                    self._stage(stage, shape)
                else:
                    self._keep(stage, shape, Findings(failed=["its model could not be written"]), 0.0)
        return self.report.passed

    def _interpreters(self) -> tuple[str, str]:
        """Of our stages and of TRL's."""
        chosen = self._chosen
        if chosen.python or chosen.device == "cpu":
            ours = chosen.python or sys.executable
            return ours, chosen.peer_python or ours
        # Not before there is a GPU: it takes minutes and 20 GB.
        from gpu_lane import environments

        python, peer = "", chosen.peer_python or ""
        if set(chosen.stages) - {"peer"}:
            python = str(environments.ours())
        if "peer" in chosen.stages and not peer:
            try:
                peer = str(environments.peers())
            except PeerError as error:
                self._peer_problem = str(error)
        # Stages themselves are ours, TRL's too.
        return python or peer or sys.executable, peer

    def _job(self, shape: str) -> Job:
        return Job(
            device=self._chosen.device,
            gpus=len(self._gpus),
            dtype=self._dtype,
            shape=shape,
            folder=str(self._scratch / f"model-{shape}"),
            scratch=str(self._scratch),
            python=self._python,
            peer_python=self._peer_python,
            deadline=self._chosen.deadline,
        )

    def _stage(self, stage: str, shape: str) -> None:
        self.say(f"{stage} {shape}")
        start = time.monotonic()
        if stage == "peer" and self._peer_problem:
            self._keep(stage, shape, Findings(failed=[self._peer_problem]), 0.0)
            return
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self._chosen.device == "cpu" else {}
        with Child(
            self._python,
            "child.measure",
            {"stage": stage, "job": self._job(shape).plain()},
            log=self._log,
            env=hidden,
            progress=lambda text: self.say(f"  {text}"),
        ) as child:
            try:
                found = Findings(**child.answer(self._chosen.deadline + _SLACK))
            except Skipped as why:
                found = Findings(skipped=[str(why)])
            except ChildFailed as error:
                found = Findings(failed=[f"{error}; see {self._log}"])
        self._keep(stage, shape, found, time.monotonic() - start)

    def _keep(self, stage: str, shape: str, found: Findings, seconds: float) -> None:
        self.report.add(stage, shape, found.plain(), seconds)
        for text in found.skipped:
            self.say(f"  skipped: {text}")
        for text in found.failed:
            self.say(f"  failed: {text}")


def main() -> int:
    """Runs the lane; returns its exit status."""
    chosen = options(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stages end with it
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rltrain-gpu-lane-") as temporary:
        scratch = chosen.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            lane = Lane(chosen, scratch.resolve())
        except PeerError as error:
            print(f"gpu-lane: {error}", file=sys.stderr)
            return 1
        passed = lane.run()
    report = lane.report
    print()
    print(report.markdown.read_text())
    for text in report.failures:
        print(f"failed: {text}")
    shown = report.markdown.resolve()
    print(
        f"written to {shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else shown} and .json beside it"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
