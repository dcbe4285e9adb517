# GRPO steps of `retort launch` beside TRL's GRPOTrainer: same model, prompts, number and length of
# completions, reward (how many letters "a" there are), fp32, `--threads` cores in all.
#   python bench/grpo_against_trl.py --retort build/bin/retort --data train.jsonl \
#       [--steps 7] [--rounds 2] [--threads 2]
# Three runs in turns, some rounds of them: retort at max_staleness 0, whose student and generator
# work one after the other; at 1, where they share the cores and the generator has half as many
# threads; TRL. `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch,
# transformers and trl 1.16 (`./dev goldens` makes such an environment). End tokens are hardly ever
# drawn from random weights, so that nearly all completions have --new-tokens tokens;
# frac_reward_zero_std is 0 where every group has a signal.
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

from against import QUIET, arguments, in_own_process, init_model, train_tokenizer, write_jsonl

PROMPTS, GENERATIONS = 4, 8
WARM_UP = 2  # steps of a run

REWARD = """import json, sys
for line in sys.stdin:
    row = json.loads(line)
    score = row["completion"].count("a")
    print(json.dumps({"id": row["id"], "score": score}), flush=True)
"""


def recipe_of(work, args, staleness):
    drawing = args.threads if staleness == 0 else max(1, args.threads // 2)
    return f"""recipe: grpo
output_dir: {work}/run
seed: 1
roles:
  student: {{model: {work}/student, world: {{threads: {args.threads}}}}}
  generator: {{model: {work}/student, world: {{threads: {drawing}}}}}
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
    recipe = work / "grpo.yaml"
    recipe.write_text(recipe_of(work, args, staleness))
    subprocess.run([args.retort, "launch", str(recipe), "--overwrite"], **QUIET)
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return {
        "times": [row["step_time"] for row in rows],
        "zero_std": [row["frac_reward_zero_std"] for row in rows],
        "lengths": [row["completions/mean_length"] for row in rows],
    }


def run_trl(work, args):
    import torch
    from against_trl import GRPO_SETTINGS, Clock
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(work / "student")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(work / "student", dtype=torch.float32)
    rows = [json.loads(line) for line in open(work / "rows.jsonl")]
    data = Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
    clock = Clock()

    config = GRPOConfig(
        output_dir=str(work / "trl"),
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=PROMPTS,
        num_generations=GENERATIONS,
        max_completion_length=args.new_tokens,
        max_steps=args.steps,
        **GRPO_SETTINGS,
    )
    GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [float(text.count("a")) for text in completions],
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[clock],
    ).train()
    logs = [row for row in clock.logs if "frac_reward_zero_std" in row]
    return {
        "times": clock.times,
        "zero_std": [row["frac_reward_zero_std"] for row in logs],
        "lengths": [row["completions/mean_length"] for row in logs],
    }


def prepare(args, work):
    """Prompts, a tokenizer of their texts, a random student and the reward, in `work`."""
    rows = [json.loads(line) for line in open(args.data)][: args.steps * PROMPTS]
    texts = [row.get("question", row.get("prompt")) for row in rows]
    write_jsonl(work / "rows.jsonl", ({"prompt": text + "\n", "completion": "x"} for text in texts))
    (work / "reward.py").write_text(REWARD)
    train_tokenizer(args.retort, args.data, work / "tokenizer")
    init_model(args.retort, work / "tokenizer", work / "student")


def processor_time(run):
    """The run's result with the processor seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = run()
    result["user"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return result


def main():
    parser = arguments(steps=7)
    parser.add_argument("--new-tokens", type=int, default=128)
    args = parser.parse_args()
    if args.reference:
        print(json.dumps(run_trl(pathlib.Path(args.reference), args)))
        return

    results = {"serial": [], "overlapped": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        for _ in range(args.rounds):
            for name, staleness in (("serial", 0), ("overlapped", 1)):
                results[name].append(processor_time(lambda: run_retort(work, args, staleness)))
            results["trl"].append(processor_time(lambda: in_own_process(__file__, args, work)))

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
