"""The recipes of whole runs."""

import json
import pathlib
import re

from processes import Child

STEPS = 12  # of a run; then it is ended, before it writes a checkpoint
TINY_STEPS = 3


def steps():
    return TINY_STEPS if Child.is_tiny else STEPS


def role(work, model, device, **more):
    dtype = "bfloat16" if device == "cuda" else "float32"
    return {"model": str(work / model), "dtype": dtype, "world": {"device": device}, **more}


def recipes(work, device="cuda"):
    """name -> recipe; `device` and sizes but for the models' are what runs on the GPU."""
    tiny = Child.is_tiny
    student, teacher = role(work, "small", device), role(work, "large", device)
    rows = lambda name: {
        "train": [{"path": str(work / f"{name}.jsonl")}],
        "max_length": 64 if tiny else 512,
    }
    train = {
        "max_steps": 3 * steps(),
        "tokens_per_batch": 64 if tiny else 16384,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "save_steps": 0,
    }
    few = {k: v for k, v in train.items() if k != "tokens_per_batch"}
    maps = lambda *names: (
        {"rpc": {"device_maps": {n: {0: 0} for n in names}}} if device == "cuda" else {}
    )
    # About one of two random completions has it.
    reward = [{"type": "regex", "pattern": "[0-4]>[^>]*$"}]
    draws = {"num_generations": 2 if tiny else 8, "max_new_tokens": 4 if tiny else 64}
    completions = lambda count: {"per_device_train_batch_size": 4 if tiny else count}
    all_of_them = {
        "grpo": {
            "recipe": "grpo",
            "roles": {"student": student, "generator": student},
            "data": rows("short"),
            "generation": draws,
            "rewards": reward,
            "grpo": {"loss_type": "dapo"},
            "train": {**few, **completions(64)},
            **maps("generator"),
        },
        "grpo_wide": {  # a step of the generator has four times the sequences
            "recipe": "grpo",
            "roles": {"student": student, "generator": student},
            "data": rows("short"),
            "generation": {**draws, "max_sequences": 256, "kv_cache": "1MiB" if tiny else "4GiB"},
            "rewards": reward,
            "grpo": {"loss_type": "dapo"},
            "train": {**few, **completions(256)},
            **maps("generator"),
        },
        "dpo": {
            "recipe": "dpo",
            "roles": {"student": student, "reference": student},
            "data": rows("short_pairs"),
            "dpo": {"beta": 0.1, "loss_type": "sigmoid"},
            "train": train,
        },
        "distill": {
            "recipe": "distill",
            "roles": {"student": student, "teacher": teacher},
            "data": rows("short"),
            "distill": {"teachers": [{"role": "teacher"}], "payload": "hidden_states"},
            "train": train,
            **maps("teacher"),
        },
        "reward_model": {
            "recipe": "reward_model",
            "roles": {"student": student},
            "data": rows("mixed_pairs"),
            "reward_model": {"center_rewards_coefficient": 0.01},
            "train": train,
        },
        "sft_lora": {
            "recipe": "sft",
            "roles": {"student": role(work, "small", device, lora={"r": 16, "lora_alpha": 32})},
            "data": rows("mixed"),
            "train": {**train, "learning_rate": 1e-4},
        },
        "on_policy_distill": {
            "recipe": "on_policy_distill",
            "roles": {"student": student, "teacher": teacher, "generator": student},
            "data": rows("short"),
            "generation": {"max_new_tokens": draws["max_new_tokens"]},
            "distill": {"teachers": [{"role": "teacher"}], "loss_type": "reverse_kl"},
            "train": {**train, "tokens_per_batch": 64 if tiny else 3072},
            **maps("teacher", "generator"),
        },
        "rejection_sampling": {
            "recipe": "rejection_sampling",
            "roles": {"student": student, "generator": student},
            "data": rows("short"),
            "generation": draws,
            "rewards": reward,
            "rejection_sampling": {
                "rounds": 2,
                "prompts_per_round": 4 if tiny else 32,
                "select": "best_of_n",
                "top_n": 1 if tiny else 4,
            },
            "train": {**train, "max_steps": steps()},
            **maps("generator"),
        },
        "sft": {
            "recipe": "sft",
            "roles": {"student": student},
            "data": rows("short"),
            "train": train,
        },
        "sft_mixed": {
            "recipe": "sft",
            "roles": {"student": student},
            "data": rows("mixed"),
            "train": train,
        },
    }
    return {
        n: {"output_dir": str(work / "runs" / n), "seed": 1, **r} for n, r in all_of_them.items()
    }


def models_of(work, name):
    return {pathlib.Path(r["model"]).name for r in recipes(work)[name]["roles"].values()}


def write_recipe(work, name, recipe):
    """JSON in flow style is YAML; keys that are numbers stay numbers."""
    path = work / f"{name}.yaml"
    path.write_text(re.sub(r'"(\d+)":', r"\1:", json.dumps(recipe, indent=1)) + "\n")
    return path
