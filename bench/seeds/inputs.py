"""What the experiments of three_seeds.py start from: data, a tokenizer, and models that are made
once, in the folder of the work, by the recipes that recipes/configs/prepare.sh runs.

    teacher    900 steps of SFT
               checkpoint-300 of it, stopped early, is what LoRA goes on from
    student    a quarter of its parameters; stopped early, so that there is something left to learn
"""

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
        shape = "--num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4"
        command = [retort, "model", "init", "--arch", "qwen3", "--tokenizer", "tokenizer"]
        size = [*SIZES[name].split(), *shape.split()]
        run_or_end([*command, "--output", f"{name}-init", *size], work)
    print(f"{name}: {recipe}", flush=True)
    paths = "data.train.0.path=train.jsonl data.eval.0.path=test.jsonl"
    command = [retort, "launch", CONFIGS / recipe, "--overwrite", f"output_dir={name}"]
    run_or_end([*command, *words(paths), *words(overrides)], work)


def prepare(retort, work):
    work.mkdir(parents=True, exist_ok=True)
    make_data(retort, work)
    if not (work / "tokenizer").exists():
        command = [retort, "tokenizer", "train", "--data", "train.jsonl", "--vocab-size", "400"]
        run_or_end([*command, "--output", "tokenizer"], work)
    make_model(retort, work, "teacher", "prepare_teacher.yaml", TEACHER)
    make_model(retort, work, "student", "prepare_student.yaml", STUDENT)
