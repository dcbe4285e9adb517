"""GGUF files of ours in llama.cpp: the same pieces of text, the same greedy tokens, the same
log-probabilities.

    RETORT_BIN=build/bin/retort RETORT_ENGINES_PYTHON=.../bin/python python3 gguf_test.py [NAME ...]

For each model below: `retort model export`, then the real engine opens the file. Of each of the
texts the token ids must be ours; of each prompt the greedy continuation must have our tokens and,
within 1e-4, our log-probabilities; each token of a continuation that we drew must have our
log-probability there, asked for prefix by prefix. Files in f16, bf16 and q8_0 must open and give
log-probabilities near ours; how near is printed. 77 (skipped) without RETORT_ENGINES_PYTHON.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
GOLDENS = HERE.parent / "models/goldens"
RETORT = os.environ.get("RETORT_BIN", str(HERE.parents[1] / "build/bin/retort"))
PYTHON = os.environ.get("RETORT_ENGINES_PYTHON")
SKIPPED = 77
TOLERANCE = 1e-4  # nats
NEAR = {"f16": 0.1, "bf16": 0.4, "q8_0": 0.4}  # nats; activations are rounded as well there
NEW_TOKENS = 24

# Nano checkpoints of transformers', with every part that a family can have in llama.cpp.
GOLDEN_MODELS = [
    "llama",
    "llama3_rope",
    "llama_bias_linear",
    "mistral_sharded",
    "qwen2",
    "qwen3",
]
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
SIZES = "--hidden-size 64 --intermediate-size 96 --num-hidden-layers 3 --num-attention-heads 4"
SIZES += " --num-key-value-heads 2 --head-dim 16 --initializer-range 0.2 --seed 3"

SIMPLE_TEXTS = ["the thin thing in there.", "What is 12 + 34?\nSay it!", "'tis don't WE'LL <s>x"]
HARD_TEXTS = [
    "Grüße an 東京 — 1234567 tokens, 3.14!\n\n\t  done",
    "I'll   see you'RE\r\n  it's\u00a0fine 🚀🌫️ កាន់តែ नमस्ते",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>x",
    "    indented = {'a': [1, 2]}  # comment\n\n\nend   ",
]


def run(*command):
    return subprocess.run(
        [RETORT, *map(str, command)], check=True, capture_output=True, text=True
    ).stdout


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path):
    with path.open() as rows:
        return [json.loads(row) for row in rows]


class Server:
    """The engine on one file, for as long as the `with` block runs."""

    def __init__(self, gguf):
        self.gguf = gguf

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [PYTHON, str(HERE / "llama_server.py"), str(self.gguf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            self.log.seek(0)
            raise AssertionError("llama.cpp did not open the file:\n" + self.log.read()[-4000:])
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def post(self, path, **body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def tokens(self, text):
        return self.post("/tokenize", content=text, add_special=True)["tokens"]

    def greedy(self, ids, count, barred):
        return self.post(
            "/completion",
            prompt=ids,
            n_predict=count,
            temperature=0,
            return_tokens=True,
            logit_bias=[[id, False] for id in barred],
        )["tokens"]

    def logprob(self, ids, token, vocabulary):
        """Of `token` after `ids`. None: the server keeps back what it says of a position while
        the most probable token there is a part of a character."""
        answer = self.post(
            "/completion", prompt=ids, n_predict=1, temperature=0, n_probs=vocabulary
        )
        for position in answer.get("completion_probabilities", []):
            return next(p["logprob"] for p in position["top_logprobs"] if p["id"] == token)


class Model:
    """A checkpoint, and what we compute with it."""

    def __init__(self, folder, texts):
        self.folder = folder
        self.texts = texts
        self.vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        self.ends = self.end_tokens()
        # Known to llama.cpp by its text, whatever the model says of it.
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        self.stops = self.ends | {vocabulary.get("<|endoftext|>")}
        # Rows of the head without a token, which we do not draw.
        added = [token["id"] for token in tokenizer["added_tokens"]]
        self.padding = range(max([*vocabulary.values(), *added]) + 1, self.vocabulary)

    def end_tokens(self):
        ends = set()
        for name in ["config.json", "generation_config.json"]:
            path = self.folder / name
            value = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
            ends |= set(value if isinstance(value, list) else [value])
        return ends - {None}

    def gguf(self, dtype):
        path = self.folder.with_suffix(f".{dtype}.gguf")
        run("model", "export", "--format", "gguf", "--dtype", dtype, self.folder, "--output", path)
        return path

    def tokens(self):
        rows = write_rows(self.folder.with_suffix(".texts"), [{"text": t} for t in self.texts])
        output = self.folder.with_suffix(".tokens")
        run("eval", "--model", self.folder, "--data", rows, "--output", output)
        return [row["token_ids"] for row in read_rows(output)]

    def generate(self, *options):
        """(token, log-probability) of each token, for each text."""
        rows = write_rows(self.folder.with_suffix(".prompts"), [{"prompt": t} for t in self.texts])
        output = self.folder.with_suffix(".completions")
        run(
            *["generate", "--model", self.folder, "--prompts", rows, "--output", output],
            *["--max-new-tokens", NEW_TOKENS, "--dtype", "float32", *options],
        )
        return [list(zip(r["token_ids"][0], r["logps"][0])) for r in read_rows(output)]


def up_to(tokens, stops):
    """The tokens before the first at which llama.cpp ends."""
    for i, token in enumerate(tokens):
        if token in stops:
            return tokens[:i]
    return tokens


class GgufTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="retort-gguf-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        data = cls.folder / "data.jsonl"
        run("data", "arithmetic", "--count", 300, "--output", data)
        run("tokenizer", "train", "--data", data, "--vocab-size", 400, "--output", cls.trained())

    @classmethod
    def trained(cls):
        return cls.folder / "tokenizer"

    def golden(self, name):
        folder = self.folder / name
        shutil.copytree(GOLDENS / name, folder, ignore=shutil.ignore_patterns("reference.*"))
        for file in (GOLDENS / "tokenizer").iterdir():
            shutil.copy(file, folder)
        return Model(folder, SIMPLE_TEXTS)

    def initialised(self, family, *options):
        folder = self.folder / f"{family}-{len(list(self.folder.iterdir()))}"
        run(
            *["model", "init", "--arch", family, "--tokenizer", self.trained(), *SIZES.split()],
            *["--output", folder, *options],
        )
        return Model(folder, SIMPLE_TEXTS + HARD_TEXTS)

    def compare(self, name, model, server, tolerance):
        prompts = []
        for text, ours in zip(model.texts, model.tokens()):
            theirs = server.tokens(text)
            without = ours[:-1] if ours[-1] in model.ends else ours
            self.assertEqual(without, theirs, repr(text))
            prompts.append(theirs)

        # Greedy tokens. In f32 they must be the same; else only as far as they are.
        greedy = model.generate("--temperature", 0)
        for i, (ids, ours) in enumerate(zip(prompts, greedy)):
            theirs = up_to(server.greedy(ids, NEW_TOKENS, model.padding), model.stops)
            ours = ours[: len(up_to([token for token, _ in ours], model.stops))]
            if tolerance <= TOLERANCE:
                self.assertEqual([token for token, _ in ours], theirs)
            same = [a == b for (a, _), b in zip(ours, theirs)] + [False]
            greedy[i] = ours[: same.index(False)]

        # Log-probabilities of these, and of tokens that we drew.
        counts = []
        for kind, completions in [
            ("greedy", greedy),
            ("drawn", model.generate("--temperature", 1, "--seed", 5)),
        ]:
            differences = []
            for ids, ours in zip(prompts, completions):
                for position, (token, p) in enumerate(ours):
                    before = ids + [earlier for earlier, _ in ours[:position]]
                    q = server.logprob(before, token, model.vocabulary)
                    if q is not None:
                        differences.append(abs(p - q))
            self.assertGreater(len(differences), 0)
            counts.append(f"{len(differences)} {kind} tokens within {max(differences):.1e}")
            self.assertLess(max(differences), tolerance, kind)
        print(f"{name}: {len(prompts)} texts; {', '.join(counts)}", flush=True)

    def test_golden_models_in_f32(self):
        for name in GOLDEN_MODELS:
            with self.subTest(name):
                model = self.golden(name)
                with Server(model.gguf("f32")) as server:
                    self.compare(name, model, server, TOLERANCE)

    def test_families_with_a_trained_tokenizer_in_f32(self):
        for family in FAMILIES:
            with self.subTest(family):
                tied = "true" if family in ("llama", "qwen3") else "false"
                model = self.initialised(
                    *[family, "--vocab-size", 416, "--tie-word-embeddings", tied]
                )
                with Server(model.gguf("f32")) as server:
                    self.compare(family, model, server, TOLERANCE)
                    prompt = server.post(
                        "/apply-template", messages=[dict(role="user", content="hi")]
                    )["prompt"]
                    self.assertEqual(
                        prompt, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
                    )

    def test_smaller_types_open(self):
        for family, dtype in zip(["llama", "mistral", "qwen3"], NEAR):
            with self.subTest(dtype):
                model = self.initialised(family)
                with Server(model.gguf(dtype)) as server:
                    self.compare(f"{family} {dtype}", model, server, NEAR[dtype])

    def test_refusals_are_exit_code_2(self):
        model = self.golden("qwen3_bias")
        output = self.folder / "x.gguf"
        command = [RETORT, "model", "export", str(model.folder), "--output", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("attention_bias", done.stderr)
        self.assertFalse(output.exists())


if __name__ == "__main__":
    if not PYTHON:
        print("skipped: RETORT_ENGINES_PYTHON is not set; ./dev test -L engines sets it")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
