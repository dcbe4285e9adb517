"""GRPO's part of the experiments of three_seeds.py: with a reward model, and its options."""

from seeds.experiments import COST, EXACT, ONE_THREAD, ROWS, Column, Experiment, Variant

GRPO = f"""{ROWS} roles.student.model=student/final roles.generator.model=student/final
train.max_steps=60 train.eval_steps=20 train.eval_on_start=true
generation.eval_num_generations=4 generation.max_new_tokens=40"""
PASS = (
    Column("eval_pass@1", "pass@1, %", 1, 100, compared=True),
    Column("eval_pass@4", "pass@4, %", 1, 100),
)
KEYS = ("reward", "entropy", "frac_reward_zero_std", "completions/clipped_ratio")


# ---- the reward of a model -----------------------------------------------------------------------
# Each run is scored by the rule and the model; one of them has the weight 0, and only shows. Every
# prompt of these runs is a new one, so that what is drawn for training is held out as well.
def rewards(rule, model):
    entries = f"{{type: numeric, weight: {rule}}},{{type: model, role: scorer, weight: {model}}}"
    return f"rewards=[{entries}]"


SHORT_MODEL, LONG_MODEL = ("reward_model", "100 steps"), ("reward_model", "400 steps")
REWARD = Experiment(
    name="reward",
    title="GRPO with a reward model, and with the exact rule",
    recipe="grpo.yaml",
    overrides=f"""{GRPO} roles.scorer.model={{needs}}
    roles.scorer.world={ONE_THREAD}""",
    variants=(
        Variant("exact rule", rewards(1, 0), needs=SHORT_MODEL),
        Variant("model of 100 steps", rewards(0, 1), "exact rule", needs=SHORT_MODEL),
        Variant("model of 400 steps", rewards(0, 1), "exact rule", needs=LONG_MODEL),
    ),
    columns=(
        EXACT,
        Column("rewards/numeric", "right of those drawn, %", 1, 100, compared=True),
        Column("rewards/model", "score of those drawn", 2),
        *COST,
    ),
    panels=(
        ("right by the exact rule, of those drawn", "rewards/numeric", ()),
        ("the model's score of those drawn", "rewards/model", ()),
    ),
    keys=(*KEYS, "rewards/numeric", "rewards/model"),
    measures=("exact",),
)


# ---- options -------------------------------------------------------------------------------------
SHORT = "generation.max_new_tokens=24"
CISPO = "grpo.loss_type=cispo grpo.epsilon_high=1.28"
CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
REFERENCE = f"roles.reference.model=student/final roles.reference.world={ONE_THREAD}"
BETA = f"grpo.beta=0.02 {REFERENCE}"
IN_REWARD = f"{BETA} grpo.kl_in_reward=true grpo.scale_rewards=none"


def corrected(correction):
    return f"grpo.sampling_correction={correction} grpo.importance_sampling_cap=1.5"


def beside(base, overrides, named):
    """The base, and a variant for each option with its overrides besides."""
    variants = [Variant(base, overrides)]
    variants += [Variant(name, f"{overrides} {more}", base) for name, more in named.items()]
    return tuple(variants)


# Of three kinds: with answers of the newest weights; with little room for an answer, so that some
# are cut off; and with answers that are up to three steps old, without which ratios are 1.
FRESH = beside(
    "none",
    "",
    {
        "max_resamples": "grpo.max_resamples=2",
        "entropy_coef": "grpo.entropy_coef=0.01",
        "scale_rewards none": "grpo.scale_rewards=none",
        "beta": BETA,
        "kl_in_reward": IN_REWARD,
        "num_mini_batches": "grpo.num_mini_batches=4",
    },
)
CUT = beside(
    "none, cut",
    SHORT,
    {
        "mask_truncated_completions": "grpo.mask_truncated_completions=true",
        "overlong_penalty_tokens": "grpo.overlong_penalty_tokens=6",
    },
)
OLD = beside(
    "num_mini_batches",
    "grpo.num_mini_batches=4",
    {
        "delta": "grpo.delta=1.5",
        "cispo": CISPO,
        "off_policy_mask_threshold": "grpo.off_policy_mask_threshold=0.05",
        **{correction: corrected(correction) for correction in CORRECTIONS},
    },
)[1:]


def panels():
    return tuple(
        (v.name, "eval_pass@1", (v.beside, v.name)) for v in (*FRESH, *CUT, *OLD) if v.beside
    )


OPTIONS = Experiment(
    name="grpo",
    title="GRPO: each option beside none",
    recipe="grpo.yaml",
    overrides=GRPO,
    variants=(*FRESH, *CUT, *OLD),
    columns=(
        *PASS,
        Column("entropy", "entropy", 3),
        Column("completions/clipped_ratio", "cut off", 3),
        *COST,
    ),
    panels=panels(),
    keys=KEYS,
    columns_of_panels=4,
)
