"""Goldens of TRL 1.16.0's whole trainers: what they log of three or four steps on the CPU, from
rows as users have them, fp32, one process.

Run:  RETORT_BIN=/path/to/retort python tests/recipes/make_trainer_goldens.py
after make_preference_goldens.py, make_kto_goldens.py, make_reward_goldens.py and
make_policy_goldens.py, whose models and rows it uses (trl 1.16.0, torch 2.11)

Writes tests/recipes/goldens/trainers.json: each case's recipe ($GOLDENS and $RUN stand for folders)
and the columns that a run of it reports. Tokens, masks, batches, accumulation, losses, clipping and
updates are the trainers'; rows are in the order of the file (train_sampling_strategy). A grpo case
has samples of the program's, by step as policy.json's: with RETORT_BIN they are recorded, without
it those of the file are used again. GRPOTrainer is given them in the place of its generator's, and
does not shuffle them among the steps of a rollout. So is DistillationTrainer for on_policy_distill.
"""

import json
import os
import re
import tempfile

import torch
import trl
from datasets import load_dataset
from make_goldens import LR, OUT, write_cases
from make_policy_goldens import SAMPLE, drawn_from, record_samples, stored_samples
from policy_cases import (
    GENERATIONS,
    MAX_NEW_TOKENS,
    PAD,
    REWARDS,
    distill_recipe,
    grpo_recipe,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
)
from trl import (
    DistillationConfig,
    DistillationTrainer,
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.trainer import distillation_trainer, grpo_trainer
from trl_stand_ins import with_fused_head

STEPS = 3

RECIPE = """\
recipe: {recipe}
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/{model}, world: {{dp: 1, threads: 1}}}}
{reference}data:
  train: [{{path: $GOLDENS/{rows}}}]
  max_length: 64
  shuffle: false
{packing}train:
  max_steps: 3
  per_device_train_batch_size: {batch}
  gradient_accumulation_steps: {accumulation}
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
{block}"""
REFERENCE = "  reference: {model: $GOLDENS/teacher, world: {dp: 1, threads: 1}}\n"


def settings(batch, accumulation=1, steps=STEPS, **more):
    """Those of a TRL config that a recipe has, and none of what TRL adds by itself."""
    return dict(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def load(name):
    return AutoModelForCausalLM.from_pretrained(OUT / name).float()


def rows_of(name, columns=None):
    rows = load_dataset("json", data_files=str(OUT / name), split="train")
    return rows if columns is None else rows.select_columns(columns)


def logged(trainer, keys):
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    history = [row for row in trainer.state.log_history if "loss" in row]
    return {key: [row[key] for row in history] for key in ("loss", "grad_norm", *keys)}


def common(trainer_class, config, rows, model="qwen3", **models):
    return trainer_class(
        model=models.pop("model_object", None) or load(model),
        args=config,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(OUT / model),
        **models,
    )


# ---- recipes without samples: (what fills RECIPE, what TRL logs)
def sft():
    recipe = dict(recipe="sft", model="qwen3", reference="", rows="prompts.jsonl")
    recipe |= dict(packing="  packing: false\n", batch=2, accumulation=2, block="")
    config = SFTConfig(**settings(2, 2, train_sampling_strategy="sequential", max_length=64))
    trainer = common(SFTTrainer, config, rows_of("prompts.jsonl"))
    return recipe, logged(trainer, ())


def dpo():
    recipe = dict(recipe="dpo", model="qwen3", reference=REFERENCE, rows="pairs.jsonl")
    recipe |= dict(packing="", batch=4, accumulation=1, block="dpo: {beta: 0.1}\n")
    options = dict(beta=0.1, max_length=64, train_sampling_strategy="sequential")
    config = DPOConfig(**settings(4, **options))
    trainer = common(DPOTrainer, config, rows_of("pairs.jsonl"), ref_model=load("teacher"))
    return recipe, logged(trainer, ("rewards/margins", "logps/chosen", "logps/rejected"))


def kto():
    recipe = dict(recipe="kto", model="qwen3", reference=REFERENCE, rows="labels.jsonl")
    block = "kto: {beta: 0.1, desirable_weight: 0.8, undesirable_weight: 1.6}\n"
    recipe |= dict(packing="", batch=4, accumulation=1, block=block)
    options = dict(beta=0.1, desirable_weight=0.8, undesirable_weight=1.6)
    options |= dict(max_length=64, train_sampling_strategy="sequential")
    config = KTOConfig(**settings(4, **options))
    trainer = common(KTOTrainer, config, rows_of("labels.jsonl"), ref_model=load("teacher"))
    return recipe, logged(trainer, ("kl",))


def reward_model():
    recipe = dict(recipe="reward_model", model="reward_one", reference="")
    recipe |= dict(rows="reward_pairs.jsonl", packing="", batch=4, accumulation=1)
    recipe["block"] = "reward_model: {use_margin: true, center_rewards_coefficient: 0.05}\n"
    options = dict(max_length=64, train_sampling_strategy="sequential")
    config = RewardConfig(**settings(4, center_rewards_coefficient=0.05, **options))
    model = AutoModelForSequenceClassification.from_pretrained(OUT / "reward_one").float()
    rows = rows_of("reward_pairs.jsonl")
    trainer = common(RewardTrainer, config, rows, model="reward_one", model_object=model)
    return recipe, logged(trainer, ("accuracy", "margin", "mean_reward"))


# ---- grpo
GRPO = {
    "grpo": ({"loss_type": "dapo"}, 3),
    # The KL's ratio is not 1 in every second step.
    "grpo_kl": ({"loss_type": "dapo", "beta": 0.1, "num_iterations": 2}, 4),
    # One rollout for four steps, drawn from less than the trainer counts.
    "grpo_correction": (
        {
            "loss_type": "grpo",
            "num_mini_batches": 4,
            "epsilon": 0.02,
            "top_p": 0.9,
            "sampling_correction": "sequence_mask",
            "importance_sampling_cap": 0.8,
        },
        4,
    ),
}
# TRL's beta: 0 is forward, 1 reverse.
DISTILL = {
    "on_policy_distill": {
        "payload": "hidden_states",
        "loss_type": "reverse_kl",
        "temperature": 1.5,
        "trl_beta": 1.0,
    },
    "on_policy_jsd": {
        "payload": "hidden_states",
        "loss_type": "jsd",
        "beta": 0.3,
        "temperature": 0.8,
        "trl_beta": 0.3,
    },
}
CLIPPED = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


class Recorded:
    """A trainer of TRL's with recorded samples in the place of its generator's."""

    def recorded(self, prompt_ids):
        samples = self.samples[self.state.global_step + 1]
        assert prompt_ids == [sample["prompt_ids"] for sample in samples]
        return samples, [sample["token_ids"] for sample in samples]


class RecordedDistillation(Recorded, DistillationTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        return self.recorded(prompt_ids)[1]


class RecordedGRPO(Recorded, GRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        samples, completions = self.recorded(prompt_ids)
        if not self.use_vllm:
            return completions, None
        drawn = drawn_from(load("qwen3").eval(), samples, 1.0, self.drawn_top_p)
        return completions, [row[: len(c)].tolist() for row, c in zip(drawn, completions)]


def reward_of(completions, **kwargs):
    found = lambda text: [r["weight"] * bool(re.search(r["pattern"], text)) for r in REWARDS]
    return [float(sum(found(text))) for text in completions]


def grpo(case, steps, samples):
    parts = case.get("num_mini_batches", 1)
    options = dict(
        loss_type=case["loss_type"],
        epsilon=case.get("epsilon", 0.2),
        num_generations=GENERATIONS,
        max_completion_length=MAX_NEW_TOKENS,
        steps_per_generation=parts,
        num_iterations=case.get("num_iterations", 1),
        beta=case.get("beta", 0.0),
        temperature=1.0,
        shuffle_dataset=False,
    )
    trainer = RecordedGRPO(
        model=load("qwen3"),
        reward_funcs=reward_of,
        args=GRPOConfig(**settings(8, 1, steps, **options)),
        train_dataset=rows_of("prompts.jsonl", ["prompt"]),
        processing_class=AutoTokenizer.from_pretrained(OUT / "qwen3"),
    )
    trainer.samples = samples
    if "beta" in case:  # where it would compare with the student's own beginning
        trainer.ref_model = with_fused_head(load("teacher").eval())
    if "sampling_correction" in case:  # which it has for vLLM alone
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        trainer.vllm_importance_sampling_mode = case["sampling_correction"]
        trainer.vllm_importance_sampling_clip_max = case["importance_sampling_cap"]
        trainer.drawn_top_p = case["top_p"]
    return logged(trainer, (*CLIPPED, *(("kl",) if "beta" in case else ())))


def distill(case, steps, samples):
    options = dict(beta=case["trl_beta"], temperature=case["temperature"], shuffle_dataset=False)
    trainer = RecordedDistillation(
        model=load("qwen3"),
        teacher_model=load("teacher"),
        args=DistillationConfig(
            **settings(4, 1, steps, max_completion_length=MAX_NEW_TOKENS, **options)
        ),
        train_dataset=rows_of("prompts.jsonl", ["prompt"]),
        processing_class=AutoTokenizer.from_pretrained(OUT / "qwen3"),
    )
    trainer.samples = samples
    return logged(trainer, ())


def sampled_cases(before):
    cases = {}
    for name, (case, steps) in GRPO.items():
        recipe = grpo_recipe(case).replace("max_steps: 5", f"max_steps: {steps}")
        cases[name] = (recipe, grpo, case, steps)
    for name, case in DISTILL.items():
        ours = {key: value for key, value in case.items() if key != "trl_beta"}
        cases[name] = (distill_recipe(ours), distill, case, 3)

    for name, (recipe, make, case, steps) in cases.items():
        recorded = "RETORT_BIN" in os.environ
        samples = record_samples(recipe) if recorded else stored_samples(before[name])
        columns = make(case, steps, samples)
        for step in samples:
            for sample in samples[step]:
                text = " ".join(f"w{i}" for i in sample["token_ids"] if i < PAD)
                assert sample["reward"] in (None, reward_of([text])[0]), text
            if "logp" not in samples[step][0]:
                for sample in samples[step]:
                    sample["logp"] = round(sum(sample["sampling_logps"]), 6)
        kept = {s: [[one[key] for key in SAMPLE] for one in samples[s]] for s in sorted(samples)}
        yield name, {"recipe": recipe, "samples": kept, **columns}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    for module in (grpo_trainer, distillation_trainer):
        module.shuffle_sequence_dict = lambda batch: batch
    path = OUT / "trainers.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    expected = {}
    for make in (sft, dpo, kto, reward_model):
        recipe, columns = make()
        expected[make.__name__] = {"recipe": RECIPE.format(**recipe), **columns}
    expected |= dict(sampled_cases(before))
    write_cases(path, expected)

    # The steps on one rollout show what they are for: some tokens are clipped, more and more.
    clipped = expected["grpo_correction"]["clip_ratio/region_mean"]
    assert clipped[0] == 0 and clipped[-1] > 0.05, clipped


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
