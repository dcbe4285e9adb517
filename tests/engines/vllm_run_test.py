"""Whole runs with a real vLLM, beside the same runs with roles of ours.

    RETORT_BIN=build/bin/retort RETORT_VLLM_PYTHON=.../bin/python python3 vllm_run_test.py

On a model with a tied head, the hardest to follow. One server is teacher and reference as it was
started, and then follows students; another one, with RETORT_TRITON_LANGUAGE (vllm_test.py), takes
ids that are named for each position. 77 (skipped) without RETORT_VLLM_PYTHON.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import vllm_between
import vllm_test

# Without ids that the tokenizer lacks: what a random model puts on them is no padding.
SIZES = vllm_test.SIZES.replace("--vocab-size 416", "--tie-word-embeddings true")
TOP_K = 64  # as --max-logprobs of the server
VERSIONS = 20
NEW_TOKENS = 8  # the probe never asks for as many


def say(*words):
    print(*words, flush=True)


def lines(file):
    with file.open() as all_of_them:
        return [json.loads(line) for line in all_of_them]


class Run:
    """The folder of a run that ended."""

    def __init__(self, folder, output, seconds):
        self.folder, self.output, self.seconds = folder, output, seconds

    def column(self, key):
        return [line[key] for line in lines(self.folder / "metrics.jsonl") if key in line]

    def receipts(self):
        return lines(self.folder / "receipts.jsonl")

    def samples(self, step):
        return lines(self.folder / f"samples/step-{step}-rank-0.jsonl")

    def contract(self, role):
        return json.loads((self.folder / f"contracts/{role}.json").read_text())


class Runs:
    """What runs beside one server, on a model with a tied head."""

    NAMED = False  # whether the server takes ids that are named for each position

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="retort-vllm-run-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for file, more in {"data": [], "pairs": ["--preferences"]}.items():
            output = cls.folder / f"{file}.jsonl"
            vllm_test.run("data", "arithmetic", "--count", 300, "--output", output, *more)
        vllm_test.run(
            *["tokenizer", "train", "--data", cls.folder / "data.jsonl", "--vocab-size", 400],
            *["--output", cls.folder / "tokenizer"],
        )
        cls.student, cls.other = (cls.model(seed) for seed in (1, 2))
        cls.server = cls.enterClassContext(vllm_test.Server(cls.other, cls.NAMED))

    @classmethod
    def model(cls, seed):
        folder = cls.folder / f"model-{seed}"
        vllm_test.run(
            *["model", "init", "--arch", "llama", "--tokenizer", cls.folder / "tokenizer"],
            *[*SIZES.split(), "--seed", seed, "--output", folder],
        )
        return folder

    # Roles.

    def ours(self, model):
        return {"model": str(model)}

    def engine(self, model, address=None, **more):
        external = {"engine": "vllm", "url": [address or self.server.address]}
        external |= {"tokenizer": str(model), "tolerance": 1e-4, "timeout": "300s", **more}
        return {"external": external}

    def following(self, name, address=None):
        weights = {"via": "folder", "folder": str(self.folder / f"{name}-weights")}
        weights["canary_tokens"] = 64
        return self.engine(self.student, address, weights=weights)

    # Runs.

    def recipe(self, name, kind, roles, rows, **more):
        train = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-3}
        rows = rows or self.folder / ("pairs.jsonl" if kind == "dpo" else "data.jsonl")
        recipe = {
            "recipe": kind,
            "output_dir": str(self.folder / name),
            "roles": {"student": self.ours(self.student), **roles},
            "data": {"train": [{"path": str(rows)}], "max_length": 112},
            **more,
        }
        recipe["train"] = train | more.get("train", {})
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(recipe))  # which is YAML
        return file

    def launch(self, name, kind, roles, succeeds=True, rows=None, **more):
        file = self.recipe(name, kind, roles, rows, **more)
        begin = time.monotonic()
        result = subprocess.run(
            [vllm_test.RETORT, "launch", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if succeeds != (result.returncode == 0):
            self.fail(f"{name}: {result.returncode}\n{result.stdout}{self.server.last_words()}")
        return Run(self.folder / name, result.stdout, time.monotonic() - begin)

    def assert_same_losses(self, name, kind, role, **more):
        got, expected = (
            self.launch(f"{name}-{suffix}", kind, {role: player(self.other)}, **more)
            for suffix, player in {"engine": self.engine, "ours": self.ours}.items()
        )
        losses, wanted = got.column("loss"), expected.column("loss")
        self.assertEqual([len(losses), len(wanted)], [3, 3])
        differences = [abs(a / b - 1) for a, b in zip(losses, wanted)]
        say(f"{name}: losses {losses}, ours {wanted}, relative {max(differences):.1e};")
        say(f"  {got.seconds:.0f} s, ours {expected.seconds:.0f} s")
        self.assertLess(max(differences), 1e-4)
        self.assertGreater(max(wanted) / min(wanted), 1 + 1e-3, "the steps tell nothing apart")
        return got


class VllmNamedRunTest(Runs, unittest.TestCase):
    NAMED = True
    DISTILL = {"payload": "topk", "support": "student", "loss_top_k": 16}

    # The student names its ids after its own forward pass.
    def test_teacher_of_distill(self):
        for loss_type in ("forward_kl", "reverse_kl"):
            with self.subTest(loss_type):
                distill = self.DISTILL | {"loss_type": loss_type}
                self.assert_same_losses(f"named-{loss_type}", "distill", "teacher", distill=distill)

    # The same numbers in other columns.
    def test_server_that_sorts(self):
        def change(path, body):
            if path != "/inference/v1/generate":
                return body
            question = json.loads(body)
            for row in question["sampling_params"]["prompt_logprob_token_ids"]:
                row.sort()
            return json.dumps(question).encode()

        with vllm_between.Between(self.server.address, change) as between:
            teacher = self.engine(self.other, between.address)
            roles = {"teacher": teacher}
            run = self.launch("sorts", "distill", roles, succeeds=False, distill=self.DISTILL)
        self.assertIn("when their ids are named and when the engine lists them", run.output)
        self.assertFalse((run.folder / "metrics.jsonl").exists(), "no step")


class VllmRunTest(Runs, unittest.TestCase):
    def test_1_reference_of_dpo(self):
        run = self.assert_same_losses("dpo", "dpo", "reference", dpo={})
        contract = run.contract("reference")
        self.assertEqual(contract["ids"], "local_copy")
        self.assertLess(contract["local"]["largest"], 1e-4)

    def test_1_teacher_of_distill(self):
        warm = {"tail": "renormalize", "temperature": 2}
        for name, more in {"distill": {}, "warm": warm}.items():
            with self.subTest(name):
                distill = {"payload": "topk", "loss_top_k": TOP_K, **more}
                self.assert_same_losses(name, "distill", "teacher", distill=distill)

    # A line for each version, in order, none of which was refused.
    def check_receipts(self, run, versions):
        receipts = run.receipts()
        self.assertEqual([line["weight_version"] for line in receipts], list(versions))
        for line in receipts:
            self.assertTrue(line["accepted"], line)
            self.assertLess(line["largest_difference"], 1e-4)
            self.assertGreater(line["tokens"], 64)
        largest = max(line["largest_difference"] for line in receipts)
        say(f"{run.folder.name}: {len(receipts)} receipts within {largest:.1e}")

    def grpo(self, name, generator, succeeds=True, seed=0, rows=None, **train):
        return self.launch(
            *[name, "grpo", {"generator": generator}, succeeds, rows],
            generation={"num_generations": 4, "max_new_tokens": NEW_TOKENS, "save_samples": True},
            rewards=[{"type": "regex", "pattern": "[A-Z0-9]"}],  # what half of them have
            grpo={},
            seed=seed,
            train={"per_device_train_batch_size": 8, **train},
        )

    def test_2_generator_of_grpo(self):
        run = self.grpo("grpo", self.following("grpo"), max_steps=VERSIONS)
        self.check_receipts(run, range(1, VERSIONS + 1))
        self.assertEqual(run.contract("generator")["drawn"], "raw")

        # The trainer's own probabilities of what was drawn are the engine's.
        differences = run.column("sampling_logp_difference/mean")
        sizes = run.column("sampling_ratio/effective_sample_size")
        self.assertEqual([len(differences), len(sizes)], [VERSIONS, VERSIONS])
        self.assertLess(max(differences), 1e-4)
        self.assertGreater(min(sizes), 0.999)
        say(f"grpo: mean differences up to {max(differences):.1e}, sample size {min(sizes):.9f};")
        say(f"  {run.seconds:.0f} s, {statistics.median(run.column('step_time')):.2f} s a version")

        # Else all versions are one.
        moved = sum(norm > 0 for norm in run.column("grad_norm"))
        self.assertGreater(moved, VERSIONS // 2)

    def test_2_generator_of_on_policy_distill(self):
        roles = {"teacher": self.ours(self.other), "generator": self.following("on-policy")}
        run = self.launch(
            *["on-policy", "on_policy_distill", roles],
            generation={"max_new_tokens": NEW_TOKENS},
            distill={"loss_type": "reverse_kl"},
            train={"max_steps": VERSIONS},
        )
        self.check_receipts(run, range(1, VERSIONS + 1))
        self.assertEqual(len(run.column("loss")), VERSIONS)
        say(f"on-policy: losses {run.column('loss')}, {run.seconds:.0f} s")

    # What a server may do wrong, done to the real one's questions on their way.

    def refused(self, name, change):
        with vllm_between.Between(self.server.address, change) as between:
            generator = {"restarts": 0, **self.following(name, between.address)}
            run = self.grpo(name, generator, succeeds=False, max_steps=4)
        accepted = [line["accepted"] for line in run.receipts()]
        self.assertEqual(accepted, [True, False], run.output)
        self.assertIn("what it computes is not what the student computes", run.output)
        self.assertEqual(len(run.column("loss")), 1, "no step with samples of other weights")
        say(f"{name}: refused, {run.receipts()[-1]['largest_difference']:.2e} nats off")

    # `replace`: of the second version's folder; the first one's weights are those at the start.
    def reloading(self, replace):
        def change(path, body):
            if path != "/collective_rpc":
                return body
            return vllm_between.other_folder(
                body, lambda folder: replace(folder) if folder.name == "version-2" else folder
            )

        return change

    def test_3_tied_head_that_is_not_named(self):
        def lost(name):
            return name == "lm_head.weight"

        self.refused(
            "head", self.reloading(lambda folder: vllm_between.without_tensors(folder, lost))
        )

    def test_3_half_an_update(self):
        def lost(name):
            return name.startswith("model.layers.1.")

        self.refused(
            "half", self.reloading(lambda folder: vllm_between.without_tensors(folder, lost))
        )

    def test_3_weights_that_were_kept(self):
        self.refused("kept", self.reloading(lambda folder: folder.with_name("version-1")))

    # A server that says its cache is empty and goes on using it. Scores are computed without the
    # cache, so that receipts are right; the trainer's own numbers of what was drawn tell.
    def test_3_cache_that_was_kept(self):
        def change(path, body):
            kept = path == "/reset_prefix_cache" and path in between.answers
            return None if kept else body

        # One prompt all along, with more tokens than a block of the cache has (32).
        rows = lines(self.folder / "data.jsonl")[:2]
        prompt = " ".join(row["prompt"] for row in rows)
        one = self.folder / "one.jsonl"
        one.write_text(json.dumps({"prompt": prompt, "completion": " 7"}) + "\n")
        with vllm_between.Between(self.server.address, change) as between:
            generator = self.following("cache", between.address)
            run = self.grpo("cache", generator, rows=one, max_steps=4)
        differences = run.column("sampling_logp_difference/mean")
        say(f"cache: differences {differences}")
        self.check_receipts(run, range(1, 5))
        self.assertLess(differences[0], 1e-4)
        self.assertGreater(max(differences[1:]), 1e-3)

    # Three seeds with the engine beside three with a generator of ours: each draws from the
    # student's distributions, and in each step the mean reward is the same but for chance.
    def test_4_rewards_of_seeds(self):
        runs = {"engine": [], "ours": []}
        for seed in (1, 2, 3):
            players = {"engine": self.following(f"seed-{seed}"), "ours": self.ours(self.student)}
            for who, generator in players.items():
                runs[who].append(self.long_run(f"seed-{seed}-{who}", generator, seed))
        for who, three in runs.items():
            means = [statistics.mean(run.column("reward")) for run in three]
            say(f"seeds, {who}: mean rewards {[round(mean, 3) for mean in means]}, together")
            say(f"  {statistics.mean(means):.3f}; surprise {surprise(three):.2f}")
            self.assertGreater(max(means) - min(means), 0, "the seeds draw the same")
            self.assertLess(abs(surprise(three)), 4)

        # The same prompts are in the same steps of both.
        rewards = (
            [reward for run in three for reward in run.column("reward")] for three in runs.values()
        )
        apart = in_errors([a - b for a, b in zip(*rewards, strict=True)])
        say(f"seeds: rewards with the engine less ours: {apart:.2f} standard errors")
        self.assertLess(abs(apart), 4)

    # The same statistic of an engine that draws otherwise than it says. Its log-probabilities of
    # what it drew are the model's, and its receipts are right: nothing else tells.
    def test_4_draws_of_another_distribution(self):
        for name, other, sign in [
            ("warm", {"temperature": 1.1}, 1),
            ("cut", {"top_p": 0.95}, -1),
        ]:
            with self.subTest(name):

                def change(path, body):
                    if path != "/v1/completions":
                        return body
                    question = json.loads(body)
                    asked = question["max_tokens"] == NEW_TOKENS
                    return json.dumps(question | other).encode() if asked else body

                with vllm_between.Between(self.server.address, change) as between:
                    generator = self.following(name, between.address)
                    run = self.long_run(f"{name}-draws", generator, seed=1)
                say(f"{name}: {other} gives a surprise of {surprise([run]):.2f}")
                self.assertLess(max(run.column("sampling_logp_difference/mean")), 1e-4)
                self.assertGreater(sign * surprise([run]), 4)

    def long_run(self, name, generator, seed):
        train = {"max_steps": 48, "per_device_train_batch_size": 16, "learning_rate": 1e-4}
        run = self.grpo(name, generator, seed=seed, **train)
        self.assertEqual(len(run.column("reward")), 48)
        return run


def in_errors(numbers):
    """Their mean in its standard errors: N(0, 1) if they are 0 but for chance."""
    return statistics.mean(numbers) / (statistics.stdev(numbers) / len(numbers) ** 0.5)


def surprise(runs):
    """Of each step, the sum of -log p of what was drawn less what the trainer's own distributions
    let expect, their entropies; in standard errors. Above 0 the draws are too warm, below it too
    cold, or cut."""
    sums = []
    for run in runs:
        for step, entropy in enumerate(run.column("entropy"), 1):
            logps = [logp for row in run.samples(step) for logp in row["logps"]]
            sums.append(-sum(logps) - len(logps) * entropy)
    return in_errors(sums)


def load_tests(loader, tests, pattern):
    if vllm_test.TRITON:
        return tests
    print("without RETORT_TRITON_LANGUAGE, a folder with Triton: no run with named ids")
    return loader.loadTestsFromTestCase(VllmRunTest)


if __name__ == "__main__":
    if not vllm_test.PYTHON:
        print("skipped: RETORT_VLLM_PYTHON names no Python with vllm (./dev test -L engines)")
        sys.exit(vllm_test.SKIPPED)
    unittest.main()
