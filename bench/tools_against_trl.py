# GRPO steps of episodes with a slow tool, of `retort launch` beside TRL's GRPOTrainer: one model
# that calls a calculator, the same environment class in both, prompts, number of completions, turns
# and tokens, fp32, `--threads` cores in all. The reward is whether the last number is right.
#   python bench/tools_against_trl.py --retort build/bin/retort \
#       [--model runs/recipes/tools/grpo/final] [--data runs/recipes/tools/prompts.jsonl] \
#       [--steps 4] [--rounds 2] [--threads 2]
# Model and prompts are those of docs/environments.md, "A task that needs the tool". A call takes
# 100 ms in the mean, exponentially distributed, at most a second: each product its own time, the
# same in both. Three runs in turns, some rounds of them: retort with the slow tool, and with one
# that takes no time, for what drawing alone takes; TRL with the slow tool. TRL makes the calls of
# its episodes one after the other; were the tool async, only those of one turn would be made at
# once, and here a turn has one. Needs torch, transformers and trl 1.16 (`./dev goldens` makes such
# an environment).
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from against import QUIET, arguments, in_own_process

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS, GENERATIONS = 16, 8
MICRO_BATCH = 64
MAX_TURNS, MAX_TOKENS = 3, 192
WARM_UP = 1  # steps of a run

# Its clock is that of an episode: from reset() to the question for a reward, which it has none of.
ENVIRONMENT = """import hashlib, math, os, time
from calculator import calculate

MEAN, LONGEST = {mean}, 1.0

def delay(expression):
    part = int.from_bytes(hashlib.sha256(expression.encode()).digest()[:6], "big") / 2**48
    return min(LONGEST, -MEAN * math.log(1 - part))

class Slow:
    def reset(self, **row):
        self.begun = time.time()

    def get_reward(self):
        with open(os.environ["EPISODES"], "a") as file:
            file.write(f"{{time.time() - self.begun}}\\n")

    def calculate(self, expression: str) -> str:
        time.sleep(delay(expression))
        return calculate(expression)

Slow.calculate.__doc__ = calculate.__doc__
"""
MEANS = {"slow": 0.1, "at once": 0.0}  # seconds


# ---- retort --------------------------------------------------------------------------------------
def recipe_of(work, args):
    return f"""recipe: grpo
output_dir: {work}/run
seed: 1
roles:
  student: {{model: {args.model}, world: {{threads: {args.threads}}}}}
  generator: {{model: {args.model}, world: {{threads: {args.threads}}}}}
  tools:
    environment:
      command: [python3, {ROOT}/python/retort_env.py, "{work}/slow.py:Slow"]
      episodes: {PROMPTS * GENERATIONS}
environment: {{role: tools, max_turns: {MAX_TURNS}, max_tokens: {MAX_TOKENS}}}
data: {{train: [{{path: {work}/rows.jsonl}}], max_length: 256, shuffle: false}}
generation: {{num_generations: {GENERATIONS}, max_new_tokens: {MAX_TOKENS}}}
rewards: [{{type: numeric}}]
grpo: {{loss_type: dapo}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {MICRO_BATCH}
  gradient_accumulation_steps: {PROMPTS * GENERATIONS // MICRO_BATCH}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
"""


def longest_episodes(log, steps):
    """Of each step: its episodes end before those of the next one begin."""
    seconds = [float(line) for line in log.read_text().split()]
    size = len(seconds) // steps
    return [max(seconds[step * size : (step + 1) * size]) for step in range(steps)]


def kept_history(log):
    """The share of the tokens before later turns that was in the generator's cache, of a run."""
    found = re.findall(r"of (\d+) tokens before later turns (\d+) were in", log.read_text())
    if not found:
        sys.exit("no episode had a second turn: does the model call the tool?")
    tokens, kept = map(int, found[-1])
    return kept / tokens


def run_retort(work, args):
    recipe = work / "grpo.yaml"
    recipe.write_text(recipe_of(work, args))
    subprocess.run([args.retort, "launch", str(recipe), "--overwrite"], **QUIET)
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return {
        "times": [row["step_time"] for row in rows],
        "drawing": [row["generation_time"] for row in rows],
        "longest": longest_episodes(work / "episodes", args.steps),
        "calls": [row["tools/call_frequency"] for row in rows],
        "lengths": [row["completions/mean_length"] for row in rows],
        "kept": kept_history(work / "run/logs/generator-0.log"),
    }


# ---- TRL -----------------------------------------------------------------------------------------
def run_trl(work, args):
    import torch
    import trl.chat_template_utils
    from against_trl import GRPO_SETTINGS, Clock
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    sys.path.insert(0, str(work))
    from slow import Slow

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # The model's template writes calls as Qwen3's does.
    tokenizer.response_template = trl.chat_template_utils.qwen3_template
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    rows = [json.loads(line) for line in open(work / "rows.jsonl")]
    data = Dataset.from_list([{"prompt": r["messages"], "answer": r["answer"]} for r in rows])
    clock = Clock()

    def right(completions, answer, **_):
        said = [re.findall(r"\d+", turns[-1].get("content") or "") for turns in completions]
        return [float(numbers[-1:] == [wanted]) for numbers, wanted in zip(said, answer)]

    config = GRPOConfig(
        output_dir=str(work / "trl"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=PROMPTS * GENERATIONS // MICRO_BATCH,
        num_generations=GENERATIONS,
        max_completion_length=MAX_TOKENS,
        max_tool_calling_iterations=MAX_TURNS - 1,
        max_steps=args.steps,
        **GRPO_SETTINGS,
    )
    GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=right,
        train_dataset=data,
        processing_class=tokenizer,
        environment_factory=Slow,
        callbacks=[clock],
    ).train()
    logs = [row for row in clock.logs if "tools/call_frequency" in row]
    return {
        "times": clock.times,
        "calls": [row["tools/call_frequency"] for row in logs],
        "lengths": [row["completions/mean_length"] for row in logs],
    }


# ---- both ----------------------------------------------------------------------------------------
def prepare(args, work):
    rows = open(args.data).readlines()[: args.steps * PROMPTS]
    (work / "rows.jsonl").write_text("".join(rows))
    calculator = (ROOT / "share/environments/calculator.py").read_text()
    (work / "calculator.py").write_text(calculator)


def run_once(name, args, work):
    program, tool = name.split(", ")
    (work / "slow.py").write_text(ENVIRONMENT.format(mean=MEANS[tool]))
    (work / "episodes").write_text("")
    if program == "trl":
        return in_own_process(__file__, args, work)
    return run_retort(work, args)


def later(runs, key):
    return [value for run in runs for value in run[key][WARM_UP:]]


def report(results):
    seconds = {name: statistics.median(later(runs, "times")) for name, runs in results.items()}
    for name, runs in results.items():
        calls, length = (statistics.mean(later(runs, key)) for key in ("calls", "lengths"))
        print(
            f"{name:16} {seconds[name]:7.3f} s a step  {calls:.2f} calls an episode  "
            f"mean length {length:.1f}"
        )
    print(f"ratio to trl: {seconds['trl, slow'] / seconds['retort, slow']:.2f}")

    slow, alone = results["retort, slow"], results["retort, at once"]
    drawing = statistics.median(later(alone, "drawing"))
    bounds = [max(drawing, longest) for longest in later(slow, "longest")]
    walls = [wall / bound for wall, bound in zip(later(slow, "drawing"), bounds)]
    print(
        f"drawing {statistics.median(later(slow, 'drawing')):.3f} s a step, {drawing:.3f} with a "
        f"tool that takes no time; the longest episode {statistics.median(bounds):.3f}; the wall "
        f"is {statistics.median(walls):.3f} of the longer of the two"
    )
    kept = statistics.mean(run["kept"] for run in slow)
    print(f"{kept:.3f} of the tokens before later turns were in the cache, in blocks of 16")


def main():
    recipes = pathlib.Path("runs/recipes/tools")
    parser = arguments(steps=4, data=recipes / "prompts.jsonl")
    parser.add_argument("--model", type=pathlib.Path, default=recipes / "grpo/final")
    args = parser.parse_args()
    if args.device != "cpu":
        parser.error("this comparison is one of CPUs")
    args.model = args.model.resolve()
    if args.reference:
        print(json.dumps(run_trl(pathlib.Path(args.reference), args)))
        return

    names = ("retort, slow", "retort, at once", "trl, slow")
    results = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        os.environ["EPISODES"] = str(work / "episodes")
        prepare(args, work)
        for _ in range(args.rounds):
            for name in names:
                results[name].append(run_once(name, args, work))
    report(results)


if __name__ == "__main__":
    main()
