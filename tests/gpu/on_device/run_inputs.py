"""What whole runs read: data, a tokenizer and models, made beside the first steps."""

import json
import random

from package import PACKAGE
from processes import Child, run

QWEN3 = (
    "--arch qwen3 --vocab-size 151936 --num-hidden-layers 28 --num-attention-heads 16"
    " --num-key-value-heads 8 --head-dim 128 --tie-word-embeddings true --dtype bfloat16"
)
MODELS = {
    "small": QWEN3 + " --hidden-size 1024 --intermediate-size 3072 --seed 1",
    "large": QWEN3 + " --hidden-size 2048 --intermediate-size 6144 --seed 2",
}

# For a device whose kernels are emulated.
TINY_VOCAB = 300
TINY = (
    "--arch qwen3 --vocab-size 300 --num-hidden-layers 2 --num-attention-heads 2"
    " --num-key-value-heads 1 --head-dim 8 --tie-word-embeddings true --dtype bfloat16"
    " --intermediate-size 24"
)
TINY_MODELS = {
    "small": TINY + " --hidden-size 16 --seed 1",
    "large": TINY + " --hidden-size 16 --seed 2",
}


def texts(count, lowest, highest, seed):
    """(prompt, answer, other answer) of so many words, each a token: a third of them prompt."""
    words = random.Random(0)
    syllable = lambda: words.choice("bdfgklmnprstvz") + words.choice("aeiou")
    known = ["".join(syllable() for _ in range(1 + i % 3)) for i in range(700)]
    draw = random.Random(seed)
    for _ in range(count):
        n = draw.randint(lowest, highest)
        take = lambda k: " ".join(draw.choices(known, k=k))
        yield take(n // 3) + "\n", take(n - n // 3), take(n - n // 3)


def write_data(work):
    sizes = (("short", 6000, 40, 56), ("mixed", 3000, 50, 290))
    if Child.is_tiny:
        sizes = (("short", 60, 4, 8), ("mixed", 60, 5, 12))
    for name, count, lowest, highest in sizes:
        rows = list(texts(count, lowest, highest, seed=len(name)))
        with open(work / f"{name}.jsonl", "w") as f:
            f.writelines(json.dumps({"prompt": p, "completion": a}) + "\n" for p, a, _ in rows)
        with open(work / f"{name}_pairs.jsonl", "w") as f:
            f.writelines(
                json.dumps({"prompt": p, "chosen": a, "rejected": b}) + "\n" for p, a, b in rows
            )


def extend_tokenizer(folder, size):
    """Ids up to `size`, which stand in no text."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    known = tokenizer["model"]["vocab"]
    first = 1 + max([*known.values(), *(token["id"] for token in tokenizer["added_tokens"])])
    known.update({f"<never{i}>": i for i in range(first, size)})
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def prepare(models=None, vocab=151936):
    """Data, a tokenizer and models in the work folder; `ready` when all are there."""
    work, retort = Child.work, PACKAGE / "bin/retort"
    env = {"OMP_NUM_THREADS": "4"}
    write_data(work)
    rc, _ = run(
        [
            retort,
            "tokenizer",
            "train",
            "--data",
            work / "mixed.jsonl",
            "--vocab-size",
            min(vocab, 4096),
            "--output",
            work / "tokenizer",
        ],
        120,
        env,
    )
    if rc != 0:
        return False
    extend_tokenizer(work / "tokenizer", vocab)
    for name, shape in (models or MODELS).items():
        rc, _ = run(
            [
                retort,
                "model",
                "init",
                "--tokenizer",
                work / "tokenizer",
                "--output",
                work / name,
                *shape.split(),
            ],
            180,
            env,
        )
        if rc != 0:
            return False
        (work / f"{name}.ready").touch()
    return True
