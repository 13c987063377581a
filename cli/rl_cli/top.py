"""`rltrain top`: who holds accelerators, who waits and why, and what became of accelerator hours."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.errors import InvalidConfig
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, connect, new_parser, number
from rl_cli.top_view import (
    SORTS,
    TopRun,
    group_table,
    headline,
    laid_out,
    pools_of,
    run_table,
    sorted_groups,
    sorted_runs,
    teams_of,
    top_run,
)
from rl_operator.model.names import KIND

_PAGE: Final = 250
"""Runs of one answer of the API server."""

_PATIENCE_SECONDS: Final = 300.0
"""How long an API server that was there may be away before --watch gives up."""

_DESCRIPTION: Final = """\
Show who holds accelerators now, who waits and why, for what share of the time samplers and learners work, and what
became of the accelerator hours: trained and kept, started (loading, stopping), lost to evictions, lost to failures; and
how long runs waited. Of runs without accelerators pods are counted. A team is a namespace.

Runs that are over are not listed without --ended; what they have taken counts for their team and pool in any case, as
long as they are there; what is kept of runs that are gone is in the metrics rltrain_team_..."""

_EXAMPLES: Final = """\
  rltrain top                                  # runs of the context's namespace
  rltrain top -A                               # of the whole cluster
  rltrain top -A --by team --sort lost         # which team loses most to evictions and failures
  rltrain top -A --by pool
  rltrain top -n team-a --watch                # again every 5 s, until Ctrl-C
  rltrain top -A -o json | jq '.runs[] | select(.state == "waits") | [.name, .reason]'
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "top", _top, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="runs of all namespaces")
    parser.add_argument(
        "--by", choices=("run", "team", "pool"), default="run", help="what a line is (default: %(default)s)"
    )
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default="held",
        help="what comes first: what holds most, then who waits (held), what waited, trained or lost most; or by name "
        "(default: %(default)s)",
    )
    parser.add_argument("--ended", action="store_true", help="list runs that are over, too")
    parser.add_argument(
        "--watch",
        nargs="?",
        const=5.0,
        type=number(1, 3600, "seconds from 1 to 3600"),
        metavar="SECONDS",
        help="show it again every so many seconds (default: 5)",
    )
    parser.add_argument("-o", "--output", choices=("json",), help="all of it, for programs; not with --watch")
    add_cluster_options(parser)


def _top(args: argparse.Namespace) -> int:
    if args.all_namespaces and args.namespace:
        raise InvalidConfig("--all-namespaces: found with --namespace, allowed: one of them")
    if args.output and args.watch is not None:
        raise InvalidConfig("--output: found with --watch, allowed: one of them")
    cluster = connect(args)
    namespace = None if args.all_namespaces else args.namespace or cluster.namespace
    away: float | None = None
    while True:
        try:
            runs, away = _runs(cluster, namespace), None
        except ClusterError as error:
            if args.watch is None or not error.passing:
                raise
            away = away or time.monotonic()
            if time.monotonic() - away >= _PATIENCE_SECONDS:
                raise ClusterError(f"{error}, and did not for {_PATIENCE_SECONDS:.0f} s") from error
            print(f"{error}; trying again for {_PATIENCE_SECONDS:.0f} s", file=sys.stderr, flush=True)
        else:
            if args.output:
                print(json.dumps(document(runs, args.sort), indent=2))
            else:
                _show(lines(runs, args.by, args.sort, namespace, args.ended), again=args.watch is not None)
        if args.watch is None:
            return 0
        time.sleep(args.watch)


def _runs(cluster: Any, namespace: str | None) -> list[TopRun]:
    found, _ = cluster.listed(KIND, namespace, page=_PAGE)
    now = datetime.now(UTC)
    return [top_run(run, now) for run in found]


def lines(runs: Sequence[TopRun], by: Any, sort: str, namespace: str | None, ended: bool) -> list[str]:
    """What is shown of runs, as lines of text."""
    if not runs:
        return [f"there are no runs {f'in namespace {namespace}' if namespace else 'in this cluster'} yet"]
    if by == "run":
        listed = sorted_runs([run for run in runs if ended or run.state != "over"], sort)
        table = run_table(listed, namespaces=namespace is None)
    else:
        table = group_table(sorted_groups(teams_of(runs) if by == "team" else pools_of(runs), sort), by)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return [headline(runs), "", *laid_out(table, width)]


def document(runs: Sequence[TopRun], sort: str) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "runs": [run.to_document() for run in sorted_runs(runs, sort)],
        "teams": [team.to_document() for team in sorted_groups(teams_of(runs), sort)],
        "pools": [pool.to_document() for pool in sorted_groups(pools_of(runs), sort)],
    }


def _show(text: Sequence[str], *, again: bool) -> None:
    """On a terminal in place of what was shown before."""
    clear = "\x1b[H\x1b[2J" if again and sys.stdout.isatty() else ""
    print(clear + "\n".join(text), flush=True)
