"""Actors are called in one way, `flow`'s: through groups of workers and their handles. Who calls Ray beside it has a reason.

Read from the source, as in `test_imports.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TRAINER = Path(__file__).parents[2] / "trainer"

BESIDE = {
    "rl_trainer.buffer.handle": "the buffer computes nothing and is no worker; everybody calls it through this handle",
    "rl_trainer.rollout.pods": "the rest of one engine, which is the sampler's own, begins with it and ends with it",
    "rl_trainer.run.resuming": "no actor: a look from where samplers will be, before there are any",
}


def calls(tree: ast.AST) -> Iterator[int]:
    """Lines in which something remote is called or started; `ray.remote` itself does neither."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote":
            owner = node.func.value
            if not (isinstance(owner, ast.Name) and owner.id == "ray"):
                yield node.lineno


def found() -> dict[str, list[int]]:
    """Module -> those lines, of the trainer but for `flow`."""
    lines = {}
    for path in sorted((TRAINER / "rl_trainer").rglob("*.py")):
        name = ".".join(path.relative_to(TRAINER).with_suffix("").parts)
        if not name.startswith("rl_trainer.flow.") and (there := list(calls(ast.parse(path.read_text())))):
            lines[name] = there
    return lines


def test_actors_are_called_by_flow_and_by_whoever_has_a_reason():
    assert {name: lines for name, lines in found().items() if name not in BESIDE} == {}


def test_the_list_holds_no_more_than_there_is():
    assert set(BESIDE) <= set(found())


def test_calls_are_found_however_they_are_written():
    text = """
a = ray.remote(num_cpus=0)(f)
b = ray.remote(A).options(x=1).remote(2)
c = actor.take.options(num_returns="streaming").remote()
d = getattr(actor, "take").remote(3)
self.remote.put(4)
"""
    assert list(calls(ast.parse(text))) == [3, 4, 5]
