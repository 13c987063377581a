"""The run that tests of `rltrain plan` plan, and how they call it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from rl_trainer.observe.metrics import MetricsWriter, StepRecord
from rl_trainer.observe.timeline import Span, TimelineWriter

RUN = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: one}
spec:
  model: {source: SOURCE, dtype: bfloat16}
  task: {environment: reasoning-gym, name: chain_sum}
  algorithm: {kl: {coefficient: 0.01}}
  learner: {replicas: 2, tokensPerMicroBatch: 4096, activationCheckpointing: true}
  sampler: {replicas: 3, engine: vllm, maxNewTokens: 3072, tensorParallelSize: 2}
  checkpoint: {storage: {s3: "s3://checkpoints"}}
"""

Command = Callable[..., int]


def texts_of(svg: Path) -> list[str]:
    """What is written in a picture, in order."""
    return [one.text or "" for one in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")]


def measured_run(folder: Path, steps: int = 6, **changes: float) -> None:
    """A run folder as the trainer leaves it: the first two steps are slow, the others take 5 s of training."""
    folder.mkdir()
    model = Path("model").absolute()
    (folder / "run.yaml").write_text(
        RUN.replace("SOURCE", str(model)).replace("maxNewTokens: 3072", "maxNewTokens: 1536")
    )
    with MetricsWriter(folder) as writer:
        for step in range(1, steps + 1):
            slow = 10.0 if step <= 2 else 1.0
            times = {
                "time_generate": 6.0 * slow,
                "time_score": 0.5,
                "time_train": 5.0,
                "time_publish": 2.0,
            } | changes
            writer.write(
                StepRecord(
                    step=step,
                    time=float(step),
                    wall_seconds=20.0,
                    reward_mean=0.0,
                    samples_per_second=12.8,
                    completion_tokens=256 * 300,
                    samplers=3,
                    **times,
                )
            )
    with TimelineWriter(folder) as timeline:
        timeline.write([Span("driver", "checkpoint", 10.0, 14.0), Span("driver", "wait", 0.0, 9.0)])
