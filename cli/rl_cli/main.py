"""The commands `rltrain` and `kubectl rltrain`.

Nothing is imported before it is known which command was meant: help is there at once, and a command for a cluster
needs neither Ray nor torch.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rl_cli.options import program


class Command(NamedTuple):
    """One command: its line in the help, and where it is."""

    name: str
    help: str
    module: str
    """Module with `add_parser(subparsers)`; empty: a command of `rl_trainer.cli`."""


HERE: Final = (
    Command("run", "train a run on this machine, or on the Ray cluster at RAY_ADDRESS", ""),
    Command("serve", "serve a policy on this machine, with OpenAI's interface", "rl_cli.serve"),
    Command("generate", "answer all rows of a file or folder with a policy", "rl_cli.generate"),
    Command("chat", "talk to a policy that is served, in the terminal", "rl_cli.chat"),
    Command("compare", "say whether a checkpoint may be served in place of another one", "rl_cli.compare"),
    Command("validate", "check files of runs, services and profiles", "rl_cli.validate"),
    Command("plan", "say what memory every role of a run will need, and whether it fits", "rl_cli.plan"),
    Command("profile", "measure what each part of a run takes, from a few steps of it", "rl_cli.profile"),
    Command("verify", "check every byte of a checkpoint, and show where it comes from", ""),
)
"""Commands that need no cluster."""

CLUSTER: Final = (
    Command("apply", "give a run or a service to a cluster", "rl_cli.apply"),
    Command("render", "show what a cluster would be given for a run or a service, offline", "rl_cli.render"),
    Command("watch", "watch a run, a service, or all of them, live", "rl_cli.watch"),
    Command("top", "show who holds accelerators, who waits, and what became of them", "rl_cli.top"),
    Command("logs", "show what a run's driver or pods wrote", "rl_cli.logs"),
    Command("exec", "run a command, or a shell, where a run's driver is", "rl_cli.exec"),
    Command("report", "get a run's report: of a run folder here, or from a cluster", "rl_cli.report"),
    Command("suspend", "write a checkpoint and give the accelerators back", "rl_cli.steer"),
    Command("resume", "go on with a suspended run", "rl_cli.steer"),
    Command("cancel", "delete a run, after a last checkpoint", "rl_cli.steer"),
)
"""Commands for a Kubernetes cluster."""

_EXAMPLES: Final = """\
examples:
  rltrain run examples/quickstart.yaml                  # here
  rltrain serve runs/quickstart
  rltrain apply examples/quickstart-cluster.yaml -n team-a
  rltrain watch quickstart-cluster -n team-a
  rltrain suspend quickstart-cluster -n team-a

`rltrain COMMAND --help` has the options and examples of each. `kubectl rltrain` is the same command.
"""

_OWN: Final = ("rl_api", "rl_cli", "rl_generate", "rl_operator", "rl_serve", "rl_trainer")
# Package -> the extra that installs it, where that is not `trainer`.
_EXTRAS: Final = {
    **dict.fromkeys(("kubernetes", "websocket"), "cluster"),
    **dict.fromkeys(("pandas", "pyarrow"), "trainer,generate"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn"), "trainer,serve"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 2 wrong input, 3 a failing reward, 130 or 143 a signal, else 1."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((word for word in words if not word.startswith("-")), None)
    known = {command.name: command for command in (*HERE, *CLUSTER)}
    if name is None or name not in known:
        if name is not None:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"
            return _say(f"{name!r} is no command; {hint}", 2)
        parser(()).parse_args(words)
        return _say(f"no command given; allowed: {', '.join(known)}", 2)
    if not known[name].module:
        return _train(name, words)
    return _cluster(known[name], words)


def _train(name: str, words: list[str]) -> int:
    """A command of the trainer."""
    if name == "run" and not {"-h", "--help"} & set(words):
        missing = [module for module in ("ray", "torch") if importlib.util.find_spec(module) is None]
        if missing:
            return _say(_lacks(missing[0], "rltrain run"), 1)
    from rl_trainer.cli import main as train

    return int(train(words))


def _cluster(command: Command, words: list[str]) -> int:
    from rl_api.errors import RLTrainError
    from rl_api.printable import printable_lines

    args: Any = None
    words, dashes, after = split(words)
    try:
        args = parser((command,)).parse_args(words, argparse.Namespace(after=after))
        if dashes and not getattr(args, "takes_command", False):
            return _say("found --, allowed only before the command of rltrain exec", 2)
        return int(args.command(args))
    except RLTrainError as error:
        if args is not None and args.debug and error.exit_code == 1:
            print(printable_lines(traceback.format_exc()), file=sys.stderr, end="")
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left, for instance `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OWN:
            raise
        return _say(_lacks(package, f"rltrain {command.name}"), 1)
    except Exception as error:
        if args is not None and args.debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"unexpected error: {text:.300}; --debug shows where it comes from", 1)


def split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """What stands before the first `--`, whether there is one, and what stands after it, which is nobody's option."""
    if "--" not in words:
        return words, False, []
    at = words.index("--")
    return words[:at], True, words[at + 1 :]


def _lacks(package: str, command: str) -> str:
    extra = _EXTRAS.get(package, "trainer")
    return f"{command} needs the package {package}, which is not installed: pip install 'rltrain[{extra}]'"


def _say(sentences: str, status: int) -> int:
    """Say what went wrong; a cluster or a pod may have put into it what it likes."""
    from rl_api.printable import printable_lines

    for sentence in printable_lines(sentences).split("\n"):
        print(f"rltrain: {sentence}", file=sys.stderr)
    return status


def parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """A parser that knows `commands`; the help lists all there are."""
    found = argparse.ArgumentParser(
        prog=program(),
        usage="%(prog)s [--debug] COMMAND ...\n       %(prog)s --version" if not commands else None,
        description="Reinforcement learning of language models: here, or on a Kubernetes cluster.",
        epilog=f"{_table('here', HERE)}\n{_table('on a cluster', CLUSTER)}\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--debug", action="store_true", help="show tracebacks")
    if not commands:
        from importlib import metadata  # as long to import as all the rest

        found.add_argument("--version", action="version", version=f"rltrain {metadata.version('rltrain')}")
    else:
        subparsers = found.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS)
        for module in dict.fromkeys(command.module for command in commands):
            importlib.import_module(module).add_parser(subparsers)
    return found


def _table(title: str, commands: Sequence[Command]) -> str:
    rows = "".join(f"  {command.name:<10}{command.help}\n" for command in commands)
    return f"{title}:\n{rows}"


if __name__ == "__main__":
    sys.exit(main())
