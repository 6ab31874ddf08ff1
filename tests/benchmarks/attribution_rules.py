"""Which rule names the right stage? python tests/benchmarks/attribution_rules.py

Simulated loaders of eight classes, 200 of each (`tests/analysis/support/simulator_classes.py` says
of what they consist and what the truth is, and is frozen), give the spans that iobench would have
recorded. From these alone the rules of `scored_rules.py` say which of four stages to make faster: a
replay of the loader (what advice goes by), the path rule (what exposure goes by), and four that are
in use elsewhere. The truth is the simulation with each stage made 20 % faster.

    right       schedules in which the named stage gains the most, or within 1 % of that; of those
                delivered in order, and out of order, beside it
    kept        gain of the named stage over that of the best one, mean
    TV          total-variation distance of the four stages' shares to exact Shapley shares, mean
    sum/wait    all that the rule gives over all that was waited, mean; 1 is an attribution
    nothing     of the schedules in which no stage is worth 1 % of the wall time, and which no other
                column counts: those where the rule says so

Nothing is measured: the same figures every time, on any machine. Two processes of a slow machine
take some minutes; --seeds 0:20 a tenth of that. --json has every schedule's row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis" / "support"))

from scored_rules import RULES, Blame
from simulator import simulate, simulated_run
from simulator_classes import CLASSES, FASTER, LEAST_GAIN, SEEDS, Truth, schedule, truth

ONLY_IN = {"replay+machine": "contended"}
"""Rules that are `replay` itself in any other class."""


def rules_of(name: str) -> list[str]:
    """Return the rules that a class is scored by."""
    return [rule for rule in RULES if ONLY_IN.get(rule, name) == name]


def scored(case: tuple[str, int]) -> dict[str, Any]:
    """Return what each rule says of a schedule, and what is true."""
    name, seed = case
    one = schedule(name, seed)
    wall_ns, wait_ns = simulate(one)
    profile, true = simulated_run(one).data(), truth(one)
    rows = {}
    for rule in rules_of(name):
        blame = RULES[rule](profile, true.stages, FASTER)
        rows[rule] = {
            "stage": blame.stage,
            "right": true.is_right(blame.stage),
            "kept": 0.0 if true.nothing else true.kept(blame.stage),
            "tv": distance(blame, true),
            "sum_over_wait": sum(blame.given_ns.values()) / max(blame.wait_ns, 1),
            "exact": sum(blame.given_ns.values()) == blame.wait_ns,
            "says_nothing": blame.predicted_ns < LEAST_GAIN * wall_ns,
            "withheld": blame.withheld,
        }
    return {
        "class": name, "seed": seed, "workers": one.workers, "prefetch": one.prefetch,
        "in_order": one.in_order, "wait": wait_ns / wall_ns, "nothing": true.nothing,
        "gains": dict(zip(true.stages, (gain / wall_ns for gain in true.gains_ns), strict=True)),
        "joint": true.joint_ns / wall_ns, "rules": rows,
    }  # fmt: skip


def distance(blame: Blame, true: Truth) -> float:
    """Return how far a rule's shares of the stages are from Shapley's: 0 alike, 1 disjoint."""
    shares = []
    for amounts in (true.shapley_ns, [blame.given_ns.get(stage, 0.0) for stage in true.stages]):
        positive = [max(amount, 0.0) for amount in amounts]
        if not sum(positive):
            return 1.0
        shares.append([amount / sum(positive) for amount in positive])
    return sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of one class."""
    counted = [row["rules"] for row in rows if not row["nothing"]]
    in_order, out_of_order = (
        [row["rules"] for row in rows if not row["nothing"] and row["in_order"] is kept]
        for kept in (True, False)
    )
    silent = [row["rules"] for row in rows if row["nothing"]]
    return {
        "schedules": len(rows),
        "scored": len(counted),
        "exact_sums": sum(row["rules"]["path"]["exact"] for row in rows),
        "rules": {
            rule: {
                **{name: _mean([row[rule][name] for row in counted])
                   for name in ("right", "kept", "tv", "sum_over_wait", "withheld")},
                "right_in_order": _mean([row[rule]["right"] for row in in_order]),
                "right_out_of_order": _mean([row[rule]["right"] for row in out_of_order]),
                "nothing": _mean([row[rule]["says_nothing"] for row in silent]),
            }
            for rule in rules_of(rows[0]["class"])
        },
    }  # fmt: skip


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def print_class(name: str, scores: dict[str, Any]) -> None:
    """Print the table of one class."""
    left = scores["schedules"] - scores["scored"]
    print(
        f"\n{name}: {scores['scored']} schedules, {left} more with nothing to gain; sums of the "
        f"path rule exact in {scores['exact_sums']} of {scores['schedules']}"
    )
    heads = "right  in order    out of      kept     TV  sum/wait  nothing  withheld"
    print(f"{'':<16}{heads:>73}")
    for rule, score in scores["rules"].items():
        cells = (
            *(_spelled(score[column], 100, f"{width}.1f", " %") for column, width in
              (("right", 5), ("right_in_order", 8), ("right_out_of_order", 8), ("kept", 8))),
            _spelled(score["tv"], 1, "7.3f"), _spelled(score["sum_over_wait"], 1, "10.2f"),
            _spelled(score["nothing"], 100, "7.0f", " %"),
            _spelled(score["withheld"], 100, "8.1f", " %") if "replay" in rule else "",
        )  # fmt: skip
        print(f"{rule:<16}{''.join(cells)}", flush=True)


def _spelled(value: float | None, factor: float, form: str, unit: str = "") -> str:
    width = int(form.partition(".")[0])
    return f"{'-':>{width}}{unit}" if value is None else f"{factor * value:{form}}{unit}"


def main() -> None:
    """Score all classes and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default=f"{SEEDS.start}:{SEEDS.stop}", metavar="A:B")
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every schedule's row")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last))
    everything: dict[str, Any] = {"seeds": arguments.seeds, "classes": {}, "rows": []}
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for name in arguments.classes:
            rows = pool.map(scored, [(name, seed) for seed in seeds], chunksize=4)
            everything["classes"][name] = summary(rows)
            everything["rows"] += rows
            print_class(name, everything["classes"][name])
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
