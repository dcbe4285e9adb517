"""What the experiments of three_seeds.py start from: data, tokenizers, and models that are made
once, in the folder of the work. Of word problems, by the recipes that recipes/configs/prepare.sh
runs:

    teacher    900 steps of SFT
               checkpoint-300 of it, stopped early, is what LoRA goes on from
    student    a quarter of its parameters; stopped early, so that there is something left to learn

Of products and a calculator, as docs/environments.md makes them:

    products-init    random weights
"""

import json

from seeds.run import CONFIGS, run_or_end

ROWS, TEST_ROWS = 12000, 400
SIZES = {
    "teacher": "--seed 1 --hidden-size 192 --intermediate-size 512",
    "student": "--seed 2 --hidden-size 96 --intermediate-size 256",
}
TEACHER = """roles.student.model=teacher-init roles.student.world={dp: 1, threads: 1}
train.per_device_train_batch_size=16 train.save_steps=300 train.save_total_limit=0"""
STUDENT = """roles.student.model=student-init train.save_steps=0
roles.student.world={threads: 1}"""


def words(overrides):
    """One `key.path=value` a word of the text; a value may hold spaces inside its braces."""
    found, depth = [""], 0
    for letter in overrides:
        depth += (letter in "{[") - (letter in "}]")
        if letter.isspace() and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [word for word in found if word]


def make_data(retort, work):
    for name, first, count in (("train", 0, ROWS), ("test", ROWS, TEST_ROWS)):
        rows = f"--first {first} --count {count} --seed 1".split()
        for file, more in ((name, []), (name + "_pairs", ["--preferences"])):
            path = f"{file}.jsonl"
            if not (work / path).exists():
                run_or_end([retort, "data", "arithmetic", "--output", path, *rows, *more], work)


def make_model(retort, work, name, recipe, overrides):
    """Random weights, then the recipe."""
    if (work / name / "final").exists():
        return
    if not (work / f"{name}-init").exists():
        make_init(retort, work, "tokenizer", f"{name}-init", SIZES[name])
    print(f"{name}: {recipe}", flush=True)
    paths = "data.train.0.path=train.jsonl data.eval.0.path=test.jsonl"
    command = [retort, "launch", CONFIGS / recipe, "--overwrite", f"output_dir={name}"]
    run_or_end([*command, *words(paths), *words(overrides)], work)


def make_init(retort, work, tokenizer, name, size):
    shape = "--num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4"
    command = [retort, "model", "init", "--arch", "qwen3", "--tokenizer", tokenizer]
    run_or_end([*command, "--output", name, *size.split(), *shape.split()], work)


def make_tokenizer(retort, work, rows, name):
    command = [retort, "tokenizer", "train", "--data", rows, "--vocab-size", "400"]
    run_or_end([*command, "--output", name], work)


def prepare_problems(retort, work):
    make_data(retort, work)
    if not (work / "tokenizer").exists():
        make_tokenizer(retort, work, "train.jsonl", "tokenizer")
    make_model(retort, work, "teacher", "prepare_teacher.yaml", TEACHER)
    make_model(retort, work, "student", "prepare_student.yaml", STUDENT)


def add_tools(prompts, calls, output):
    """The prompts with the tools of the other rows: what an environment would bring."""
    with open(calls) as rows:
        tools = json.loads(rows.readline())["tools"]
    with open(prompts) as rows, open(output, "w") as shown:
        shown.writelines(json.dumps(json.loads(row) | {"tools": tools}) + "\n" for row in rows)


def prepare_products(retort, work):
    files = {
        "calls": "--calls 30 --count 20000",
        "test_calls": "--calls 30 --first 20000 --count 200",
        "prompts": "--prompts --first 100000 --count 5000",
        "test_prompts": "--prompts --first 20000 --count 200",
    }
    for name, rows in files.items():
        if not (work / f"{name}.jsonl").exists():
            command = [retort, "data", "arithmetic", "--tools", "--seed", "1", *rows.split()]
            run_or_end([*command, "--output", f"{name}.jsonl"], work)
    for name in ("prompts", "test_prompts"):
        add_tools(work / f"{name}.jsonl", work / "calls.jsonl", work / f"{name}_with_tools.jsonl")
    if not (work / "products-tokenizer").exists():
        make_tokenizer(retort, work, "calls.jsonl", "products-tokenizer")
    if not (work / "products-init").exists():
        size = "--seed 1 --hidden-size 96 --intermediate-size 256"
        make_init(retort, work, "products-tokenizer", "products-init", size)


STARTS = {"problems": prepare_problems, "products": prepare_products}


def prepare(retort, work, starts):
    work.mkdir(parents=True, exist_ok=True)
    for start in sorted(starts):
        STARTS[start](retort, work)
