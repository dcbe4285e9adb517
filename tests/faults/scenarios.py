"""The recipes that processes are taken from: small, a few seconds each."""
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/recipes/goldens"
GENERATION = "generation: {max_new_tokens: 10, kv_cache: 4MiB%s}\n"
USER_TURNS = ROOT / "tests/faults/user_turns.py"
# A conversation of the tokenizer's words, with hermes' calls, which an untrained model never says.
TEMPLATE = (
    "{% if tools %}w59 <tool_call> {% endif %}"
    "{% for m in messages %}w60 {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %} <eos> w61 {% endfor %}"
    "{% if add_generation_prompt %}w60 {% endif %}")


def role(name, model, dp=1, tp=1):
    path = model if isinstance(model, pathlib.Path) else GOLDENS / model
    world = f"{{dp: {dp}, tp: {tp}, threads: 1}}"
    limit = "" if name == "student" else ", restarts: 8"
    return f"  {name}: {{model: {path}, world: {world}{limit}}}\n"


def recipe(name, roles, data, steps, more, student="qwen3", batch=4):
    return (
        f"recipe: {name}\nseed: 3\nroles:\n{role('student', student, tp=roles.pop('tp', 1))}"
        + "".join(role(one, **options) for one, options in roles.items())
        + f"data:\n  train: [{{path: {data}}}]\n  max_length: 64\n"
        + ("  packing: false\n  shuffle: false\n" if name == "distill" else "")
        + f"train:\n  max_steps: {steps}\n  per_device_train_batch_size: {batch}\n"
        "  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n  save_steps: 3\n" + more
    )


def distill(dp=1, tp=1, payload="topk", steps=200, batch=4):
    more = f"distill: {{teachers: [{{role: teacher}}], payload: {payload}}}\n"
    return lambda data: recipe(
        "distill", {"teacher": {"model": "teacher", "dp": dp, "tp": tp}}, GOLDENS / "rows.jsonl",
        steps, more, batch=batch)


def dpo(dp=1):
    return lambda data: recipe(
        "dpo", {"reference": {"model": "teacher", "dp": dp}}, data / "pairs.jsonl", 60,
        "dpo: {beta: 0.1}\n")


def on_policy_distill(dp=1):
    roles = {"generator": {"model": "qwen3", "dp": dp}, "teacher": {"model": "teacher", "dp": dp}}
    return lambda data: recipe(
        "on_policy_distill", dict(roles), data / "prompts.jsonl", 120,
        GENERATION % "" + "distill: {payload: topk}\n")


# `large`: weights that do not fit a small message, in several buckets.
def grpo(dp=1, tp=1, large=False, more=""):
    def make(data):
        model = data / "large" if large else "qwen3"
        text = GENERATION % ", num_generations: 4" + (
            f"grpo: {{{more}}}\nrewards: [{{type: length, min: 10, max: 64}}, "
            "{type: regex, pattern: 'w[1-3]', weight: 0.5}]\n")
        if large:
            text += "weight_sync: {bucket_bytes: 256KiB}\n"
        roles = {"generator": {"model": model, "dp": dp, "tp": tp}, "tp": tp}
        return recipe("grpo", roles, data / "prompts.jsonl", 40 if large else 120, text,
                      student=model)

    return make


# grpo whose completions are episodes of up to three turns, with two processes that answer them.
def episodes(dp=1):
    def make(data):
        model = data / "chat"
        text = recipe(
            "grpo", {"generator": {"model": model, "dp": dp}}, data / "messages.jsonl", 60,
            "generation: {max_new_tokens: 5, kv_cache: 4MiB, num_generations: 4}\n"
            "rewards: [{type: environment}]\n"
            "environment: {role: tools, max_turns: 4, max_tokens: 40}\n", student=model)
        program = f"{{command: ['{sys.executable}', '{USER_TURNS}']}}"
        tools = f"  tools: {{environment: {program}, world: {{dp: 2}}, restarts: 8}}\n"
        return text.replace("data:\n", tools + "data:\n", 1)

    return make


# Name: the recipe, and how many processes each role that can be lost has.
SCENARIOS = {
    "distill": (distill(), {"teacher": 1}),
    "distill, 2 replicas": (distill(dp=2), {"teacher": 2}),
    "distill, tp 2": (distill(tp=2, payload="hidden_states"), {"teacher": 2}),
    "distill, full": (distill(payload="full", steps=60, batch=20), {"teacher": 1}),
    "dpo": (dpo(), {"reference": 1}),
    "dpo, 2 replicas": (dpo(dp=2), {"reference": 2}),
    "on_policy_distill": (on_policy_distill(), {"teacher": 1, "generator": 1}),
    "on_policy_distill, 2 replicas": (on_policy_distill(dp=2), {"teacher": 2, "generator": 2}),
    "grpo": (grpo(), {"generator": 1}),
    "grpo, 2 replicas": (grpo(dp=2), {"generator": 2}),
    "grpo, tp 2": (grpo(tp=2), {"generator": 2}),
    "grpo, large": (grpo(large=True), {"generator": 1}),
    "grpo, large, 2 replicas": (grpo(dp=2, large=True), {"generator": 2}),
    "grpo, episodes": (episodes(), {"generator": 1, "tools": 2}),
    "grpo, episodes, 2 replicas": (episodes(dp=2), {"generator": 2, "tools": 2}),
}
# Drawn by --scenario alone, so that trials of a seed stay what they were.
DRAWN = sorted(name for name in SCENARIOS if "episodes" not in name)


def words(start, count):
    return " ".join(f"w{(start * 7 + i * 5) % 60}" for i in range(count))


def write_data(folder, program):
    """What the recipes read, in `folder`; what is there stays."""
    with open(folder / "prompts.jsonl", "w") as file:
        for i in range(10):
            row = {"prompt": words(i + 1, 1 + i % 6), "completion": words(i + 2, 3)}
            file.write(json.dumps(row) + "\n")
    with open(folder / "messages.jsonl", "w") as file:
        for i in range(10):
            row = {"messages": [{"role": "user", "content": f"w{10 + 3 * i}"}]}
            file.write(json.dumps(row) + "\n")
    with open(folder / "pairs.jsonl", "w") as file:
        for i in range(240):
            row = {
                "prompt": words(i + 1, 1 + i % 4),
                "chosen": words(i + 3, 2 + i % 3),
                "rejected": words(i + 5, 1 + i % 5),
            }
            file.write(json.dumps(row) + "\n")
    shutil.copytree(GOLDENS / "qwen3", folder / "chat", dirs_exist_ok=True)
    (folder / "chat/chat_template.jinja").write_text(TEMPLATE)
    if not (folder / "large").exists():
        subprocess.run(
            [program, "model", "init", "--arch", "qwen3", "--tokenizer", str(GOLDENS / "qwen3"),
             "--hidden-size", "128", "--num-hidden-layers", "3", "--num-attention-heads", "4",
             "--seed", "5", "--output", str(folder / "large")],
            check=True, stdout=subprocess.DEVNULL)
