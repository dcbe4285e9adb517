"""The cases of make_policy_goldens.py, and their recipes."""

import json

from make_goldens import VOCAB

PAD, EOS = VOCAB - 2, VOCAB - 1
PROMPTS, GENERATIONS, MAX_NEW_TOKENS = 2, 4, 10  # of a grpo step
# Which of them a case has; RARE gives many groups one reward for all.
REWARDS = [
    {"type": "regex", "pattern": "w1", "weight": 1.0, "name": "ones"},
    {"type": "regex", "pattern": "w5[0-9]", "weight": 0.5, "name": "fifties"},
]

RARE = [{"type": "regex", "pattern": "w6[0-9]", "weight": 1.0, "name": "sixties"}]

RECIPE = """\
recipe: {kind}
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/qwen3, world: {{dp: 1, threads: 1}}}}
  generator: {{model: $GOLDENS/qwen3, world: {{dp: 1, threads: 1}}}}
{frozen}data:
  train: [{{path: $GOLDENS/prompts.jsonl}}]
  max_length: 64
  shuffle: false
{packing}train:
  max_steps: {steps}
  per_device_train_batch_size: {rows}
  gradient_accumulation_steps: {accumulation}
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
generation: {generation}
{blocks}"""
FROZEN = "  {role}: {{model: $GOLDENS/teacher, world: {{dp: 1, threads: 1}}}}\n"

# Stops make completions of different lengths.
GENERATION = {
    "role": "generator",
    "max_new_tokens": MAX_NEW_TOKENS,
    "stop": ["w3"],
    "kv_cache": "16MiB",
    "save_samples": True,
}
GRPO = {
    "dapo": {"loss_type": "dapo"},
    "iterations": {"loss_type": "grpo", "num_iterations": 2, "epsilon": 0.05},
    # TRL's KL before 1.16.
    "reference": {
        "loss_type": "dr_grpo",
        "beta": 0.04,
        "use_bias_correction_kl": False,
        "temperature": 0.8,
    },
    "batch_scale": {"loss_type": "bnpo", "scale_rewards": "batch", "accumulation": 2},
    "rloo": {"loss_type": "dapo", "advantage": "rloo"},
    "reinforce": {"loss_type": "dapo", "advantage": "reinforce_plus_plus"},
    "equal_rewards": {"loss_type": "grpo", "rewards": RARE},
    "sequence": {
        "loss_type": "grpo",
        "num_iterations": 2,
        "epsilon": 0.03,
        "importance_sampling_level": "sequence",
    },
    # The generator draws from less than the trainer counts: weights are below 1, and so are caps.
    "token_correction": {
        "loss_type": "dapo",
        "temperature": 0.8,
        "top_p": 0.9,
        "sampling_correction": "token_truncate",
        "importance_sampling_cap": 0.91,
    },
    "sequence_correction": {
        "loss_type": "bnpo",
        "temperature": 1.3,
        "top_p": 0.9,
        "sampling_correction": "sequence_mask",
        "importance_sampling_cap": 0.4,
    },
    "stale": {"loss_type": "grpo", "temperature": 0.8, "max_staleness": 1},
    "stale_sequence": {
        "loss_type": "dapo",
        "temperature": 1.3,
        "max_staleness": 1,
        "importance_sampling_level": "sequence",
        "epsilon": 0.1,
        "epsilon_high": 0.3,
    },
    # Two steps share out twice as many samples; the ratio is to what the generator reports.
    "mini_batches": {"loss_type": "grpo", "num_mini_batches": 2, "epsilon": 0.05},
    "two_sided": {
        "loss_type": "grpo",
        "num_mini_batches": 2,
        "epsilon": 0.01,
        "delta": 1.02,
    },
    # Samples worse than the others that have become less likely since they were drawn are dropped.
    "off_policy_mask": {
        "loss_type": "grpo",
        "num_mini_batches": 2,
        "off_policy_mask_threshold": 0.001,
    },
    "cispo": {"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 1.02},
    # About half of the completions are cut off.
    "truncated": {
        "loss_type": "dapo",
        "mask_truncated_completions": True,
        "overlong_penalty_tokens": 4,
        "stop": ["w33", "w34", "w35", "w36"],
    },
    "kl_in_reward": {
        "loss_type": "dapo",
        "beta": 0.1,
        "kl_in_reward": True,
        "temperature": 0.8,
    },
    # Old log-probabilities are the trainer's own again, and the correction sees the older weights.
    "stale_correction": {
        "loss_type": "dapo",
        "temperature": 0.8,
        "top_p": 0.9,
        "max_staleness": 1,
        "sampling_correction": "token_mask",
        "importance_sampling_cap": 1.1,
    },
}
DISTILL = {
    "on_policy_hidden": {"payload": "hidden_states", "loss_type": "reverse_kl", "temperature": 1.5},
    "on_policy_gradient": {
        "payload": "target_logps",
        "loss_type": "reverse_kl",
        "use_policy_gradient": True,
        "lmbda": 1.0,
    },
}


def grpo_recipe(case):
    case = dict(case)
    accumulation = case.pop("accumulation", 1)
    generation = {**GENERATION, "num_generations": GENERATIONS}
    rewards = case.pop("rewards", REWARDS)
    for key in ("temperature", "top_p", "stop"):
        if key in case:
            generation[key] = case.pop(key)
    return RECIPE.format(
        kind="grpo",
        frozen=FROZEN.format(role="reference") if "beta" in case else "",
        packing="",
        steps=5,
        rows=PROMPTS * GENERATIONS // accumulation,
        accumulation=accumulation,
        generation=json.dumps(generation),
        blocks=f"rewards: {json.dumps(rewards)}\ngrpo: {json.dumps(case)}\n",
    )


def distill_recipe(case):
    distill = {"teachers": [{"role": "teacher"}], **case}
    return RECIPE.format(
        kind="on_policy_distill",
        frozen=FROZEN.format(role="teacher"),
        packing="  packing: false\n",
        steps=3,
        rows=4,
        accumulation=1,
        generation=json.dumps(GENERATION),
        blocks=f"distill: {json.dumps(distill)}\n",
    )
