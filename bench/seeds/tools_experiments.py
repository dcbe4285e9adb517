"""Episodes with a calculator, of three_seeds.py: the recipes sft_tools.yaml and grpo_tools.yaml."""

from seeds.experiments import COST, ONE_THREAD, Column, Experiment, Variant

SFT = Experiment(
    name="tools_sft",
    title="Calls of a calculator: sft",
    recipe="sft_tools.yaml",
    start="products",
    overrides=f"""data.train.0.path=calls.jsonl data.eval.0.path=test_calls.jsonl
    data.chat_template={{configs}}/tools.jinja roles.student.model=products-init
    roles.student.world={ONE_THREAD}""",
    variants=(Variant("3 calls in 10 rows"),),
    columns=(
        Column("eval_loss", "held-out loss"),
        Column("eval_mean_token_accuracy", "held-out accuracy of tokens, %", 1, 100),
        *COST,
    ),
    panels=(),
)

# The same prompt, with the calculator in it, and the same first model; but nobody answers a call.
WITHOUT = """environment=null roles.tools=null rewards=[{type: numeric}]
data.train.0.path=prompts_with_tools.jsonl data.eval.0.path=test_prompts_with_tools.jsonl"""
TOOLS = Experiment(
    name="tools",
    title="GRPO with a calculator, and without",
    recipe="grpo_tools.yaml",
    start="products",
    overrides="""data.train.0.path=prompts.jsonl data.eval.0.path=test_prompts.jsonl
    roles.student.model={needs} roles.generator.model={needs} train.save_steps=0
    train.eval_steps=10 generation.save_samples=true""",
    variants=(
        Variant(
            "calculator",
            "roles.tools.environment.command=[python3, {retort_env}, {calculator}:Calculator]",
            needs=("tools_sft", "3 calls in 10 rows"),
        ),
        Variant("no calculator", WITHOUT, "calculator", needs=("tools_sft", "3 calls in 10 rows")),
    ),
    columns=(
        Column("eval_reward", "right, %", 1, 100, compared=True),
        Column("rewards/numeric", "right of those drawn, %", 1, 100, compared=True),
        Column("tools/call_frequency", "calls an episode", 2),
        Column("completions/mean_length", "tokens of the model", 1),
        *COST,
    ),
    panels=(
        ("right of 200 held-out products", "eval_reward", ()),
        ("right of those drawn", "rewards/numeric", ()),
        ("calls an episode", "tools/call_frequency", ("calculator",)),
        ("tokens of the model", "completions/mean_length", ()),
    ),
    keys=("rewards/numeric", "tools/call_frequency", "completions/mean_length", "entropy"),
)
