# The time of a GRPO step with generation and rewards overlapped (max_staleness: 0 and 1) against
# generation, scoring and training alone, one core each.
#   python bench/grpo_overlap.py --retort build/bin/retort \
#       --model runs/recipes/student-half/final --data runs/recipes/train.jsonl --reward-ms 50
# Generation alone is what the generator reports for a step's samples, scoring alone what the
# student measures (with --reward-ms a program that takes that long for each sample, one after the
# other); training alone is a step at staleness 0 without its waits for samples and scores.
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Scores a completion a line, with its length.
REWARD = '''
import json, sys, time
for line in sys.stdin:
    row = json.loads(line)
    time.sleep(float(sys.argv[1]))
    print(json.dumps({"id": row["id"], "score": row["num_tokens"]}), flush=True)
'''


def run(retort, work, args, staleness):
    recipe = work / "grpo.yaml"
    rewards = "{type: length, min: 1, max: 100000}, {type: numeric, weight: 0.5}"
    if args.reward_ms:
        program = work / "reward.py"
        program.write_text(REWARD)
        seconds = args.reward_ms / 1000
        rewards += f', {{type: command, argv: [{sys.executable}, {program}, "{seconds}"]}}'
    recipe.write_text(f"""recipe: grpo
output_dir: {work}/run-{staleness}
seed: 1
roles:
  student: {{model: {args.model}, world: {{threads: 1}}}}
  generator: {{model: {args.model}, world: {{threads: 1}}}}
data: {{train: [{{path: {args.data}}}], max_length: 256}}
generation: {{num_generations: 8, max_new_tokens: {args.max_new_tokens}}}
rewards: [{rewards}]
grpo: {{max_staleness: {staleness}}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {args.batch}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
""")
    launch = [retort, "launch", str(recipe), "--overwrite"]
    subprocess.run(launch, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in open(work / f"run-{staleness}" / "metrics.jsonl")][3:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=33)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--reward-ms", type=float, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        serial = run(args.retort, work, args, 0)
        overlapped = run(args.retort, work, args, 1)

    def median(rows, value):
        return statistics.median([value(row) for row in rows])

    # A perfect overlap costs what the slowest side costs alone; at staleness 0 training begins when
    # the others have ended.
    generation = median(serial, lambda r: r["generation_time"])
    reward = median(serial, lambda r: r["reward_time"])
    waits = ("generator_wait_time", "reward_wait_time")
    training = median(serial, lambda r: r["step_time"] - sum(r[wait] for wait in waits))
    print(
        f"alone: generation {generation * 1e3:.1f} ms, scoring {reward * 1e3:.1f} ms, "
        f"training {training * 1e3:.1f} ms"
    )
    for staleness, rows, best in (
        (0, serial, max(generation, reward) + training),
        (1, overlapped, max(generation, reward, training)),
    ):
        step = median(rows, lambda r: r["step_time"])
        left = median(rows, lambda r: r["reward_wait_time"])
        print(
            f"max_staleness {staleness}: step {step * 1e3:.1f} ms, {step / best:.3f} of the best; "
            f"waits {left * 1e3:.1f} ms for scores after the last sample"
        )


if __name__ == "__main__":
    main()
