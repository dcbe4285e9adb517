# The time of a GRPO step with generation overlapped (max_staleness: 1) against generation alone and
# training alone, one core each.
#   python bench/grpo_overlap.py --retort build/bin/retort \
#       --model runs/recipes/student-half/final --data runs/recipes/train.jsonl
# Generation alone is what the generator reports for a step's samples; training alone is a serial
# step without its wait for samples.
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile


def run(retort, work, args, staleness):
    recipe = work / "grpo.yaml"
    recipe.write_text(f"""recipe: grpo
output_dir: {work}/run-{staleness}
seed: 1
roles:
  student: {{model: {args.model}, world: {{threads: 1}}}}
  generator: {{model: {args.model}, world: {{threads: 1}}}}
data: {{train: [{{path: {args.data}}}], max_length: 256}}
generation: {{num_generations: 8, max_new_tokens: {args.max_new_tokens}}}
rewards: [{{type: length, min: 1, max: 100000}}, {{type: numeric, weight: 0.5}}]
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        serial = run(args.retort, work, args, 0)
        overlapped = run(args.retort, work, args, 1)

    # A perfect overlap costs what the slower side costs alone.
    generation = statistics.median([r["generation_time"] for r in serial])
    training = statistics.median([r["step_time"] - r["generator_wait_time"] for r in serial])
    slower, faster = max(generation, training), min(generation, training)
    step0 = statistics.median([r["step_time"] for r in serial])
    step1 = statistics.median([r["step_time"] for r in overlapped])
    print(
        f"generation alone {generation * 1e3:.1f} ms, training alone {training * 1e3:.1f} ms "
        f"(balance {slower / faster:.2f})"
    )
    print(f"serial step {step0 * 1e3:.1f} ms, overlapped step {step1 * 1e3:.1f} ms")
    print(f"overlapped / max(generation, training): {step1 / slower:.3f}")


if __name__ == "__main__":
    main()
