# The time of an on-policy distillation step beside what it consists of, at several max_staleness:
#   python bench/distill_overlap.py --retort build/bin/retort --data train.jsonl \
#       [--steps 20] [--rounds 2] [--new-tokens 64] [--staleness 0,1,2]
# One thread for each role. No step can take less than its longest role, nor than the processor time
# of all roles by the cores that they share; "ideal" is the larger of both, of the same run.
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows.
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from against import QUIET
from on_policy_against_trl import ROWS, prepare

FIRST_STEPS = 4  # of a run, which fill pools, caches and the pipeline


def launch(args, work, staleness):
    """Rows of metrics, and seconds of all processes."""
    (work / "recipe.yaml").write_text(f"""recipe: on_policy_distill
output_dir: {work}/run
roles:
  student: {{model: {work}/student, world: {{threads: 1}}}}
  teacher: {{model: {work}/teacher, world: {{threads: 1}}}}
  generator: {{model: {work}/student, world: {{threads: 1}}}}
data: {{train: [{{path: {work}/rows.jsonl}}], max_length: 512, packing: false, shuffle: false}}
generation: {{max_new_tokens: {args.new_tokens}}}
distill: {{teachers: [{{role: teacher}}], loss_type: reverse_kl, max_staleness: {staleness}}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
""")
    before = os.times()
    subprocess.run([args.retort, "launch", str(work / "recipe.yaml"), "--overwrite"], **QUIET)
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return [json.loads(line) for line in open(work / "run/metrics.jsonl")], used


def measure(args, work, staleness):
    rows, used = launch(args, work, staleness)
    few = argparse.Namespace(**vars(args) | {"steps": FIRST_STEPS})
    start = launch(few, work, staleness)[1]  # what loading takes is no step's
    median = lambda values: statistics.median(list(values)[FIRST_STEPS:])
    waits = ("generator_wait_time", "teacher_wait_time")
    answers = [key for key in rows[-1] if key.endswith("teacher.forward/handler_p50")]
    roles = {
        "student": median(r["step_time"] - sum(r[key] for key in waits) for r in rows),
        "generator": median(r["generation_time"] for r in rows),
        "teacher": median(r[answers[0]] for r in rows),
    }
    cores = (used - start) / (args.steps - FIRST_STEPS) / len(os.sched_getaffinity(0))
    return median(r["step_time"] for r in rows), roles, cores


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--staleness", default="0,1,2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        for _ in range(args.rounds):
            for staleness in args.staleness.split(","):
                step, roles, cores = measure(args, work, staleness)
                ideal = max(*roles.values(), cores)
                parts = ", ".join(f"{name} {1000 * s:.0f}" for name, s in roles.items())
                print(
                    f"max_staleness {staleness}: {1000 * step:.0f} ms a step = {step / ideal:.2f}"
                    f" ideal ({parts}, all by cores {1000 * cores:.0f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
