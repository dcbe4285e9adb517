"""The experiments of three_seeds.py: each a recipe of recipes/configs, the overrides that all its
variants have, and the variants, each with overrides of its own."""

import dataclasses

from seeds.inputs import words


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    overrides: str = ""
    beside: str = ""  # the variant that it is compared with; none: it is compared with no other
    # (experiment, variant), whose run of the same seed must be there: {needs} in the overrides.
    needs: tuple = ()


@dataclasses.dataclass(frozen=True)
class Column:
    """Of a table: a key of the last evaluation, or one of the figures of a run."""

    key: str
    title: str
    digits: int = 3
    scale: float = 1
    compared: bool = False  # with that of `beside`


@dataclasses.dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    recipe: str
    overrides: str
    variants: tuple
    columns: tuple
    panels: tuple  # (title, key, variants; none: all of them) of the picture; (): no picture
    keys: tuple = ()  # of the curves that are kept besides those of evaluations
    measures: tuple = ()  # of the last checkpoint, by names of seeds/run.py
    columns_of_panels: int = 2
    start: str = "problems"  # what there must be before: a key of seeds.inputs.STARTS

    def words(self, variant):
        """Overrides of a variant, but those that a seed decides."""
        return words(self.overrides) + words(variant.overrides)


ROWS = "data.train.0.path=train.jsonl data.eval.0.path=test.jsonl train.save_steps=0"
PAIRS = ROWS.replace("train.jsonl", "train_pairs.jsonl").replace("test.jsonl", "test_pairs.jsonl")
ONE_THREAD = "{threads: 1}"
EXACT = Column("exact", "exact match, %", 1, 100, compared=True)
COST = (Column("processor", "CPU s", 0),)


# ---- payloads ------------------------------------------------------------------------------------
DRAWN = "distill.payload=sampled distill.num_samples="
WITHOUT = "distill.replacement=false"
PAYLOAD = Experiment(
    name="payload",
    title="Distillation: what a teacher sends",
    recipe="distill.yaml",
    overrides=f"""{ROWS} roles.student.model=student-init roles.student.world={ONE_THREAD}
    roles.teacher.model=teacher/final roles.teacher.world={ONE_THREAD} train.max_steps=400
    train.per_device_train_batch_size=8 train.learning_rate=3.0e-3 train.eval_steps=50
    train.logging_steps=10 distill.kd_ratio=1.0""",
    variants=(
        Variant("full", "distill.payload=full"),
        Variant("topk 64", "distill.payload=topk distill.loss_top_k=64", "full"),
        Variant("sampled 64", f"{DRAWN}64", "full"),
        Variant("sampled 64, no replacement", f"{DRAWN}64 {WITHOUT}", "full"),
        Variant("topk 4", "distill.payload=topk distill.loss_top_k=4", "full"),
        Variant("sampled 4", f"{DRAWN}4", "full"),
    ),
    columns=(
        Column("kl", "held-out KL", 3, compared=True),
        Column("eval_loss", "held-out loss", 3),
        EXACT,
        Column("bytes", "bytes a token", 0),
        *COST,
    ),
    panels=(
        ("held-out loss", "eval_loss", ()),
        ("held-out accuracy of tokens", "eval_mean_token_accuracy", ()),
    ),
    measures=("exact", "kl"),
)


# ---- reward models -------------------------------------------------------------------------------
REWARD_MODEL = Experiment(
    name="reward_model",
    title="A reward model",
    recipe="reward_model.yaml",
    overrides=f"""{PAIRS} roles.student.model=student/final train.max_steps=100
    train.eval_steps=20 train.eval_on_start=true train.learning_rate=3.0e-4""",
    variants=(
        Variant("100 steps"),
        Variant(
            "400 steps",
            "train.max_steps=400 train.eval_steps=80 train.learning_rate=1.0e-3",
            "100 steps",
        ),
    ),
    columns=(
        Column("eval_accuracy", "held-out accuracy, %", 1, 100, compared=True),
        Column("eval_loss", "held-out loss"),
        *COST,
    ),
    panels=(
        ("held-out accuracy of pairs", "eval_accuracy", ()),
        ("held-out loss", "eval_loss", ()),
    ),
)


# ---- LoRA ----------------------------------------------------------------------------------------
def lora_variants(rate, ranks, of_full="", of_lora=""):
    """The learning rate of LoRA is ten times that of all weights (docs/lora.md)."""
    variants = [Variant("full", f"train.learning_rate={rate:g} {of_full}")]
    for r in ranks:
        lora = f"roles.student.lora={{r: {r}, lora_alpha: {2 * r}}}"
        more = f"train.learning_rate={10 * rate:g} {lora} {of_lora}"
        variants.append(Variant(f"LoRA, r {r}", more, "full"))
    return tuple(variants)


LORA_COST = (
    Column("weights", "weights", 2),
    Column("state", "state", 2),
    Column("peak", "peak", 0),
    *COST,
)
LORA_SFT = Experiment(
    name="lora_sft",
    title="LoRA: sft",
    recipe="prepare_student.yaml",
    overrides=f"""{ROWS} roles.student.model=teacher/checkpoint-300
    roles.student.world={ONE_THREAD} train.max_steps=100 train.eval_steps=20
    train.eval_on_start=true train.tokens_per_batch=2048 train.logging_steps=10
    train.min_lr=0 train.warmup_steps=5""",
    variants=(
        *lora_variants(3e-4, ranks=(4, 16, 64)),
        Variant("full, 1.0e-3", "train.learning_rate=1.0e-3", "full"),
    ),
    columns=(Column("eval_loss", "held-out loss", 4, compared=True), EXACT, *LORA_COST),
    panels=(
        ("held-out loss", "eval_loss", ()),
        ("held-out accuracy of tokens", "eval_mean_token_accuracy", ()),
    ),
    measures=("exact",),
)
LORA_DPO = Experiment(
    name="lora_dpo",
    title="LoRA: dpo",
    recipe="dpo.yaml",
    overrides=f"""{PAIRS} roles.student.model=teacher/checkpoint-300 train.max_steps=60
    train.eval_steps=15 train.tokens_per_batch=2048""",
    variants=lora_variants(
        3e-5,
        ranks=(16, 64),
        of_full="roles.reference.model=teacher/checkpoint-300",
        of_lora="roles.reference=null dpo.reference=student",
    ),
    columns=(
        Column("eval_loss", "held-out loss", 3, compared=True),
        Column("eval_rewards/accuracies", "ranked right, %", 1, 100),
        EXACT,
        *LORA_COST,
    ),
    panels=(
        ("held-out loss", "eval_loss", ()),
        ("held-out pairs, right one preferred", "eval_rewards/accuracies", ()),
    ),
    measures=("exact",),
)
