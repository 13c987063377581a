"""REINFORCE in plain PyTorch, as an example of a program of your own (examples/command.yaml): it knows nothing of rltrain.

A table of logits writes words; the reward is the share of letters that are those of the word it is to learn.
What it needs to know of its run is in environment variables, and what it says is lines of JSON: docs/backends.md.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch

spec = json.loads(Path(os.environ["RLTRAIN_CONFIG"]).read_text())["spec"]
settings = spec["trainer"]["config"]
checkpoint = Path(os.environ["RLTRAIN_CHECKPOINTS"]) / "newest.pt"
deadline = float(os.environ.get("RLTRAIN_DEADLINE", "inf"))
every = spec["checkpoint"]["everySteps"] if spec["checkpoint"] else spec["stop"]["maxSteps"]

torch.manual_seed(spec["seed"])
goal = torch.tensor([ord(letter) - ord("a") for letter in settings["word"]])
logits = torch.zeros(len(goal), 26, requires_grad=True)
optimizer = torch.optim.Adam([logits], lr=settings["learningRate"])
first = 0
if os.environ["RLTRAIN_RESUME"] == "1" and checkpoint.exists():
    state = torch.load(checkpoint)
    logits.data, first = state["logits"], state["step"]
    optimizer.load_state_dict(state["optimizer"])

stopping = False


def stop(*_: object) -> None:
    """The run is suspended, or has used up its time: finish this step, and keep what was learned."""
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)


def report(**fields: object) -> None:
    """Tell how it goes."""
    with open(os.environ["RLTRAIN_METRICS"], "a") as metrics:
        metrics.write(json.dumps(fields) + "\n")


def save(step: int) -> None:
    """Keep what the next attempt goes on from."""
    state = {"logits": logits.data, "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, checkpoint.with_suffix(".part"))
    checkpoint.with_suffix(".part").replace(checkpoint)  # never half a checkpoint
    report(event="checkpoint", step=step, path=str(checkpoint))


print(f"learns the word {settings['word']!r} from step {first}")
step = first
while step < int(os.environ["RLTRAIN_MAX_STEPS"]) and not stopping and time.time() < deadline:
    began = time.time()
    policy = torch.distributions.Categorical(logits=logits)
    words = policy.sample((settings["batch"],))
    rewards = (words == goal).float().mean(dim=1)
    advantages = rewards - rewards.mean()
    loss = -(advantages[:, None] * policy.log_prob(words)).sum(dim=1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    report(
        step=step,
        reward_mean=rewards.mean().item(),
        reward_std=rewards.std().item(),
        loss=loss.item(),
        entropy=policy.entropy().mean().item(),
        wall_seconds=time.time() - began,
        completion_tokens=words.numel(),
        tokens_per_second=words.numel() / max(time.time() - began, 1e-9),
    )
    if step % every == 0:
        save(step)
best = "".join(chr(ord("a") + letter) for letter in logits.argmax(dim=1).tolist())
print(f"after step {step} the policy writes {best!r}")
save(step)
