#!/usr/bin/env python3
"""Three seeds of each variant of some experiments, with their tables and pictures:

    OMP_NUM_THREADS=1 python bench/three_seeds.py --retort build/bin/retort [--only payload,grpo]

    payload       what a teacher sends: full, top-k, drawn ids
    lora_sft      LoRA of several ranks beside full fine-tuning
    lora_dpo      the same with dpo
    reward_model  held-out accuracy of a reward model
    reward        GRPO with that reward model, and with the exact rule
    grpo          each option of GRPO beside none
    tools         GRPO of episodes with a calculator, and without
    tools_sft     what that starts from

seeds/experiments.py says what a variant is. A run takes half a minute to three on one core. Its
figures are a line of bench/results/three_seeds/EXPERIMENT.jsonl; what stands there already, with
the same overrides, is not run again. --report runs nothing; --steps 4 shortens every run, to see
that all of them begin and end, and keeps nothing. Pictures need matplotlib; without it they are
left out. Data, models and runs lie in --work.
"""

import argparse
import json
import os
import pathlib
import time

from seeds import experiments, grpo_experiments, inputs, run, tools_experiments
from seeds import report as reports

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        experiments.PAYLOAD,
        experiments.LORA_SFT,
        experiments.LORA_DPO,
        experiments.REWARD_MODEL,
        grpo_experiments.REWARD,
        grpo_experiments.OPTIONS,
        tools_experiments.SFT,
        tools_experiments.TOOLS,
    )
}
# Files of the repository that overrides name; results keep the names.
PATHS = {
    "configs": run.CONFIGS,
    "retort_env": ROOT / "python/retort_env.py",
    "calculator": ROOT / "share/environments/calculator.py",
}


class Results:
    """Runs of an experiment by variant and seed, in a file with a line for each."""

    def __init__(self, folder, experiment):
        self.path = folder / f"{experiment.name}.jsonl"
        self.order = [variant.name for variant in experiment.variants]
        self.of = {}
        wanted = {v.name: experiment.words(v) for v in experiment.variants}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in map(json.loads, lines):
            if wanted.get(line["variant"]) == line["overrides"]:
                self.of[line["variant"], line["seed"]] = line

    def add(self, line):
        self.of[line["variant"], line["seed"]] = line
        keys = sorted(self.of, key=lambda key: (self.order.index(key[0]), key[1]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(self.of[key]) + "\n" for key in keys))


def folder_of(experiment, variant, seed):
    return f"{experiment.name}/{variant.name.replace(' ', '_').replace(',', '')}/seed_{seed}"


def shortened(args):
    return [f"train.{key}={args.steps}" for key in ("max_steps", "eval_steps") if args.steps]


def run_one(args, experiment, variant, seed):
    """Runs a variant, and first what it needs unless that is there."""
    overrides = experiment.words(variant)
    if variant.needs:
        other = EXPERIMENTS[variant.needs[0]]
        needed = next(v for v in other.variants if v.name == variant.needs[1])
        model = f"{folder_of(other, needed, seed)}/final"
        if not (args.work / model).exists():
            run_one(args, other, needed, seed)
        overrides = [word.replace("{needs}", model) for word in overrides]
    for name, path in PATHS.items():
        overrides = [word.replace(f"{{{name}}}", str(path)) for word in overrides]

    start = time.monotonic()
    folder = folder_of(experiment, variant, seed)
    words = [f"seed={seed}", *overrides, *shortened(args)]
    line = {"variant": variant.name, "seed": seed, "overrides": experiment.words(variant)}
    line |= run.run(args.retort, args.work, experiment, folder, words)
    print(f"{folder}: {time.monotonic() - start:.0f} s", flush=True)
    return line


def report(experiment, results, pictures):
    print(f"\n## {experiment.title}\n\n{reports.tables(experiment, results)}\n", flush=True)
    if not experiment.panels:
        return
    try:
        reports.draw(experiment, results, pictures / f"{experiment.name}.png")
    except ImportError as error:
        print(f"no picture: {error}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--retort", default=os.environ.get("RETORT_BIN", "build/bin/retort"))
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="names with commas between")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs/three_seeds")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results/three_seeds")
    parser.add_argument("--steps", type=int, help="of every run, for a trial")
    parser.add_argument("--report", action="store_true", help="tables and pictures alone")
    args = parser.parse_args()

    chosen = args.only.split(",")
    if unknown := set(chosen) - set(EXPERIMENTS):
        parser.error(f"no experiment {', '.join(unknown)}; there are: {', '.join(EXPERIMENTS)}")
    args.retort, args.work = pathlib.Path(args.retort).resolve(), args.work.resolve()
    pictures = ROOT / "docs/curves"
    if args.steps:
        args.results = pictures = args.work / "trial"
    if not args.report:
        inputs.prepare(args.retort, args.work, {EXPERIMENTS[name].start for name in chosen})
    for experiment in (EXPERIMENTS[name] for name in chosen):
        results = Results(args.results, experiment)
        todo = [(v, s) for s in range(1, args.seeds + 1) for v in experiment.variants]
        for variant, seed in [] if args.report else todo:
            if (variant.name, seed) not in results.of:
                results.add(run_one(args, experiment, variant, seed))
        report(experiment, results.of, pictures)


if __name__ == "__main__":
    main()
