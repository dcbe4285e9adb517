# GRPO steps of `retort launch` beside TRL's GRPOTrainer: same model, prompts, number and length of
# completions, reward (how many letters "a" there are), fp32, `--threads` cores in all.
#   python bench/grpo_against_trl.py --retort build/bin/retort --data train.jsonl \
#       [--steps 7] [--rounds 2] [--threads 2]
# Three runs in turns, some rounds of them: retort at max_staleness 0, whose student and generator
# have all threads and work one after the other; at 1, with a thread each; TRL. `--data`: JSONL with
# question/answer (GSM8K) or prompt/completion rows. Needs torch, transformers and trl 1.4
# (`./dev goldens` makes such an environment). End tokens are out of reach for random weights, so
# that all completions have --new-tokens tokens; frac_reward_zero_std is 0 where every group has a
# signal.
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PROMPTS, GENERATIONS = 4, 8
WARM_UP = 2  # steps of a run
QUIET = dict(check=True, stdout=subprocess.DEVNULL)

REWARD = """import json, sys
for line in sys.stdin:
    row = json.loads(line)
    score = row["completion"].count("a")
    print(json.dumps({"id": row["id"], "score": score}), flush=True)
"""


def recipe_of(work, args, staleness):
    threads = args.threads if staleness == 0 else max(1, args.threads // 2)
    return f"""recipe: grpo
output_dir: {work}/run
seed: 1
roles:
  student: {{model: {work}/student, world: {{threads: {threads}}}}}
  generator: {{model: {work}/student, world: {{threads: {threads}}}}}
data: {{train: [{{path: {work}/rows.jsonl}}], max_length: 512, shuffle: false}}
generation: {{num_generations: {GENERATIONS}, max_new_tokens: {args.new_tokens}}}
rewards: [{{type: command, argv: [{sys.executable}, {work}/reward.py]}}]
grpo: {{loss_type: dapo, max_staleness: {staleness}, sampling_correction: none}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {GENERATIONS}
  gradient_accumulation_steps: {PROMPTS}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
"""


def run_retort(work, args, staleness):
    """Rows of metrics, and the processor seconds of all processes."""
    recipe = work / "grpo.yaml"
    recipe.write_text(recipe_of(work, args, staleness))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([args.retort, "launch", str(recipe), "--overwrite"], **QUIET)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return {
        "times": [row["step_time"] for row in rows],
        "zero_std": [row["frac_reward_zero_std"] for row in rows],
        "lengths": [row["completions/mean_length"] for row in rows],
        "user": used,
    }


def run_trl(work, args):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(work / "student")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(work / "student", dtype=torch.float32)
    rows = [json.loads(line) for line in open(work / "rows.jsonl")]
    data = Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
    times, kept = [], []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            times.append(time.perf_counter() - self.start)

        def on_log(self, _args, _state, _control, logs=None, **__):
            kept.append(logs)

    config = GRPOConfig(
        output_dir=str(work / "trl"),
        use_cpu=True,
        bf16=False,
        fp16=False,
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=PROMPTS,
        num_generations=GENERATIONS,
        max_completion_length=args.new_tokens,
        max_steps=args.steps,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        loss_type="dapo",
        beta=0.0,
        temperature=1.0,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        dataloader_num_workers=0,
    )
    GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [float(text.count("a")) for text in completions],
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Clock()],
    ).train()
    logs = [row for row in kept if "frac_reward_zero_std" in row]
    return {
        "times": times,
        "zero_std": [row["frac_reward_zero_std"] for row in logs],
        "lengths": [row["completions/mean_length"] for row in logs],
    }


def run_in_own_process(work, args):
    """run_trl in a second process of this script, with its own threads."""
    threads = str(args.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, HF_HUB_OFFLINE="1")
    command = [sys.executable, __file__, "--data", args.data, "--steps", str(args.steps)]
    command += ["--threads", threads, "--new-tokens", str(args.new_tokens), "--trl", str(work)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    last = [line for line in out.splitlines() if line.startswith('{"times"')][-1]
    return {**json.loads(last), "user": used}


def prepare(args, work):
    """Prompts, a tokenizer of their texts, a random student and the reward, in `work`."""
    rows = [json.loads(line) for line in open(args.data)][: args.steps * PROMPTS]
    texts = [row.get("question", row.get("prompt")) for row in rows]
    lines = [json.dumps({"prompt": text + "\n", "completion": "x"}) + "\n" for text in texts]
    (work / "rows.jsonl").write_text("".join(lines))
    (work / "reward.py").write_text(REWARD)
    train = [args.retort, "tokenizer", "train", "--data", args.data]
    tokenizer = str(work / "tokenizer")
    subprocess.run([*train, "--vocab-size", "8192", "--output", tokenizer], **QUIET)
    init = [args.retort, "model", "init", "--arch", "qwen2", "--tokenizer", tokenizer]
    size = "--hidden-size 320 --intermediate-size 896 --vocab-size 8192"
    size += " --num-hidden-layers 6 --num-attention-heads 8 --seed 1"
    subprocess.run([*init, "--output", str(work / "student"), *size.split()], **QUIET)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--trl", help=argparse.SUPPRESS)  # the second process of this script
    args = parser.parse_args()
    if args.trl:
        print(json.dumps(run_trl(pathlib.Path(args.trl), args)))
        return

    results = {"serial": [], "overlapped": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        for _ in range(args.rounds):
            results["serial"].append(run_retort(work, args, staleness=0))
            results["overlapped"].append(run_retort(work, args, staleness=1))
            results["trl"].append(run_in_own_process(work, args))

    seconds = {}
    for name, runs in results.items():
        times = [time for run in runs for time in run["times"][WARM_UP:]]
        seconds[name] = statistics.median(times)
        zero = statistics.mean(value for run in runs for value in run["zero_std"])
        length = statistics.mean(value for run in runs for value in run["lengths"])
        user = statistics.median(run["user"] for run in runs)
        print(
            f"{name:10} {seconds[name]:7.3f} s a step  {user:6.1f} s of processor time a run  "
            f"frac_reward_zero_std {zero:.3f}  mean length {length:.1f}"
        )
    for name in ("serial", "overlapped"):
        print(f"ratio, {name}: {seconds['trl'] / seconds[name]:.2f}")


if __name__ == "__main__":
    main()
