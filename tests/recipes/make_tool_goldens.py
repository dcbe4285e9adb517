"""Goldens of TRL 1.16.0's GRPOTrainer on episodes with tools: one step of a model whose turns a
script says (tool_cases.py), fp32 on the CPU, one process.

Run:  python tests/recipes/make_tool_goldens.py   (trl 1.16.0, torch 2.11, transformers 5.23)

All but the draws is TRL's: prompts, the loop over calls, suffixes, masks, rewards, advantages,
loss, gradient, clipping, AdamW. max_tool_calling_iterations is one less than ours' max_turns, as
the last turn is not counted there. Writes into tests/recipes/goldens/

- qwen3_tools/: a nano model with Qwen3's own chat template (Apache 2.0, as TRL ships it), in whose
  place TRL takes one that keeps prefixes, and a byte-level tokenizer; tool_rows.jsonl
- tools.json: prompts; of each script the ids of its turns, and what TRL made of each completion; of
  each case what the step reports
- tools_gradients.safetensors, tools_changes.safetensors: of each case the gradient before clipping,
  and what the step changed (float16), of all parameters in the order of their sorted names, end to
  end; those of "ours"

Where ours differs by design a completion has "ours", the fields that are other there, and "why".
They are not put down by hand: AsOurs is TRL's trainer with each difference in the one place where
it arises, and what it makes of the script must differ from TRL's in the stated fields and no
others. The case "masked" has TRL's own step, and that of AsOurs as "ours"; of the other cases both
have the same bits.
"""

import json
import math
import pathlib
import tempfile

import torch
import trl
from datasets import load_dataset
from make_goldens import LR, OUT, change_of, own_parameters, write_cases
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tool_cases import (
    AGREED,
    DIFFERING,
    END,
    GENERATIONS,
    LONG,
    MAX_TOKENS,
    MAX_TURNS,
    NO_REWARD,
    NO_REWARD_WHY,
    OTHER_END,
    REASONS,
    ROWS,
    Counter,
    OrderedCounter,
    Spelled,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

MODEL = OUT / "qwen3_tools"
VOCAB = 448
# Words of Qwen3's tokenizer; the others are special.
TAGS = ("tool_call", "tool_response", "think")
WORDS = [f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")]
SPECIAL = [OTHER_END, "<|im_start|>", END]
# Those that have one meaning in both.
METRICS = [
    "loss",
    "grad_norm",
    "reward",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "tools/call_frequency",
    "tools/failure_frequency",
    "entropy",
]
CASES = {
    "dapo": ("agreed", AGREED, {"loss_type": "dapo"}),
    "grpo": ("agreed", AGREED, {"loss_type": "grpo"}),
    "masked": (
        "differing",
        DIFFERING,
        {"loss_type": "dapo", "mask_truncated_completions": True},
    ),
}


# ---- the model
def tools():
    names = ("add", "add_later", "give_up", "refuse", "report")
    return [get_json_schema(getattr(Counter(), name)) for name in names]


def save_tokenizer():
    template = (pathlib.Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrap = lambda: PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=OTHER_END, chat_template=template
    )

    # Prompts are long texts: the tokenizer is trained on them, so that they have few tokens.
    texts = [
        wrap().apply_chat_template(row["prompt"], tools=tools(), tokenize=False) for row in ROWS
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(WORDS + SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts + [LONG], trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(WORDS)
    assert tokenizer.get_vocab_size() == VOCAB
    wrap().save_pretrained(MODEL)


def build():
    save_tokenizer()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    ends = tokenizer.convert_tokens_to_ids([END, OTHER_END])
    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        initializer_range=0.25,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.eos_token_id = ends
    model.save_pretrained(MODEL)
    lines = [json.dumps(row) + "\n" for row in ROWS]
    (OUT / "tool_rows.jsonl").write_text("".join(lines))


# ---- the trainers
class Scripted(GRPOTrainer):
    """A trainer whose turns a script says, as long as a turn may be, and which remembers what it
    made of them."""

    turns = None  # of each completion: ids of each turn
    so_far = None  # of each completion: all its tokens, and how many turns they are

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        if self.so_far is None:
            self.so_far = [(ids, 0) for ids in prompt_ids]
        asked, drawn = 0, []
        for ids in prompt_ids:
            # Those that go on keep their order: it is the next one whose tokens these are.
            while not self.goes_on(asked, ids):
                asked += 1
            said = self.so_far[asked][1]
            drawn.append(self.turns[asked][said][: self.max_completion_length])
            self.so_far[asked] = (ids + drawn[-1], said + 1)
            asked += 1
        return [list(ids) for ids in drawn], None

    def goes_on(self, index, ids):
        before, said = self.so_far[index]
        return ids[: len(before)] == before and said < len(self.turns[index])

    def _generate(self, prompts):
        made = super()._generate(prompts)
        self.prompt_ids, self.ids, masks, self.conversations, *_ = made
        self.masks = [list(mask) for mask in masks]
        return made

    def _calculate_rewards(self, *args):
        self.rewards = super()._calculate_rewards(*args)
        return self.rewards

    def _generate_and_score_completions(self, inputs):
        self.scored = super()._generate_and_score_completions(inputs)
        return self.scored

    def training_step(self, *args):
        loss = super().training_step(*args)
        named = sorted(self.model.named_parameters())
        self.gradient = torch.cat([value.grad.flatten() for _, value in named])
        return loss

    def is_truncated(self, index):
        return self.ids[index][-1] not in [*self.eos_token_ids, self._tokenizer.pad_token_id]

    def completions(self):
        """What the golden has of each."""
        trained = (self.scored["completion_mask"] * self.scored["tool_mask"]).sum(1).tolist()
        for i, (ids, mask) in enumerate(zip(self.ids, self.masks, strict=True)):
            reward = self.rewards[i].item()
            yield {
                "ids": ids,
                "mask": "".join(map(str, mask)),
                "length": sum(mask),
                "trained": trained[i],
                "reward": None if math.isnan(reward) else reward,
                "advantage": self.scored["advantages"][i].item(),
                "truncated": self.is_truncated(i),
            }


class AsOurs(Scripted):
    """With each of the differences where it arises; that of mixed_kinds is OrderedCounter."""

    @staticmethod
    def parse_whole(tokenizer, ids, **kwargs):
        """half_a_turn, not_json, cut_call: a turn without an end, or with a call that is none, is
        text."""
        parsed = PARSE_RESPONSE(tokenizer, ids, **kwargs)
        calls = [call["function"]["arguments"] for call in parsed.get("tool_calls", [])]
        whole = ids[-1] in tokenizer.convert_tokens_to_ids([END, OTHER_END])
        if whole and all(isinstance(a, dict) and "NaN" not in json.dumps(a) for a in calls):
            return parsed
        return {"role": "assistant", "content": tokenizer.decode(ids)}

    def _generate(self, prompts):
        made = super()._generate(prompts)
        _, all_ids, masks, *_ = made
        end, other = self._tokenizer.convert_tokens_to_ids([END, OTHER_END])
        for i, ids in enumerate(all_ids):
            # other_end
            for place in [place for place, token in enumerate(ids[:-1]) if token == other]:
                for row, value in ((ids, end), (masks[i], 0), (self.masks[i], 0)):
                    row.insert(place + 1, value)
            # max_turns, dropped_answer: what has no loss. self.masks stays as it is.
            if self.mask_truncated_completions and self.is_truncated(i):
                masks[i][:] = [0] * len(ids)
        return made

    def is_truncated(self, index):
        unanswered = self.conversations[index][-1].get("tool_calls")
        return bool(unanswered) or super().is_truncated(index)


PARSE_RESPONSE = grpo_trainer.parse_response


def step(script, trainer_class, options):
    """The trainer after its step, what it reports, and its change."""
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=1,
        per_device_train_batch_size=GENERATIONS * len(ROWS),
        num_generations=GENERATIONS,
        max_completion_length=MAX_TOKENS,
        max_tool_calling_iterations=MAX_TURNS - 1,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        shuffle_dataset=False,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    ours = trainer_class is AsOurs
    grpo_trainer.parse_response = AsOurs.parse_whole if ours else PARSE_RESPONSE
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(MODEL).float(),
        args=config,
        train_dataset=load_dataset("json", data_files=str(OUT / "tool_rows.jsonl"), split="train"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        environment_factory=OrderedCounter if ours else Counter,
    )
    trainer.turns = [turns for _, turns in turns_of(script)]
    trainer.remove_callback(PrinterCallback)
    start = own_parameters(trainer.model)
    trainer.train()

    logged = trainer.state.log_history[0]
    report = {key: logged[key] for key in METRICS}
    if ours:  # which TRL counts by the last token
        cut = [trainer.is_truncated(i) for i in range(len(trainer.ids))]
        report["completions/clipped_ratio"] = sum(cut) / len(cut)
    report["trained_tokens"] = int(trainer.scored["num_items_in_batch"])
    return trainer, report, change_of(trainer.model, start)


def turns_of(script):
    """Name and turns, as ids, of each completion."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    spell = lambda text: [i for letter in text for i in tokenizer.encode(letter)]
    for row, group in enumerate(script):
        assert len(group) == GENERATIONS
        for name, turns in group.items():
            yield (
                f"{row}/{name}",
                [
                    spell(turn) + tokenizer.encode(END)
                    if isinstance(turn, Spelled)
                    else tokenizer.encode(turn)
                    for turn in turns
                ],
            )


# ---- what differs
def reasons_of(trl_made, ours_made, name, group_differs, masked):
    """The fields of a completion that are other than TRL's, as they are declared, and why."""
    found = {key: ours_made[key] for key in trl_made if ours_made[key] != trl_made[key]}
    fields, why = REASONS.get(name.partition("/")[2], ([], None))
    wanted = {field for field in fields if field != "trained" or masked}
    if group_differs:
        wanted.add("advantage")
        why = why or "another completion of its group has another reward"
    assert found.keys() == wanted, (name, found.keys(), wanted)
    return {"ours": found, "why": why} if found else {}


def compare(script, by_trl, by_ours, masked):
    made = list(zip(turns_of(script), by_trl.completions(), by_ours.completions(), strict=True))
    differs = [one["reward"] != other["reward"] for _, one, other in made]
    for i, ((name, turns), one, other) in enumerate(made):
        group = i - i % GENERATIONS
        group_differs = any(differs[group : group + GENERATIONS])
        reasons = reasons_of(one, other, name, group_differs, masked)
        yield name, {"turns": turns, **one, **reasons}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    grpo_trainer.shuffle_sequence_dict = lambda batch: batch
    build()
    assert max(len(turn) for _, turns in turns_of(AGREED) for turn in turns) > MAX_TOKENS
    golden = {
        "settings": {
            "generations": GENERATIONS,
            "max_turns": MAX_TURNS,
            "max_tokens": MAX_TOKENS,
            "learning_rate": LR,
        }
    }
    gradients, changes = {}, {}
    for case, (name, script, options) in CASES.items():
        by_trl, report, change = step(script, Scripted, options)
        by_ours, our_report, our_change = step(script, AsOurs, options)
        prompts = by_trl.prompt_ids[::GENERATIONS]
        for trainer in (by_trl, by_ours):
            assert trainer.prompt_ids == [ids for ids in prompts for _ in range(GENERATIONS)]
        golden["prompts"] = {"ids": prompts}
        masked = options.get("mask_truncated_completions", False)
        golden[name] = dict(compare(script, by_trl, by_ours, masked))

        differs = {key: value for key, value in our_report.items() if value != report[key]}
        golden[case] = {"script": name, "options": options, **report, "ours": differs}
        gradients[case], changes[case] = by_ours.gradient, our_change
        if name == "agreed":
            assert differs.keys() == {"completions/clipped_ratio"}, differs
            assert torch.equal(by_trl.gradient, by_ours.gradient)
            assert torch.equal(change, our_change)
        else:
            assert abs(differs["loss"] / report["loss"] - 1) > 0.01, differs

    # It has no step that could be compared.
    alone, _, _ = step(NO_REWARD, Scripted, {})
    pairs = zip(turns_of(NO_REWARD), alone.completions(), strict=True)
    golden["no_reward"] = {name: {"turns": turns, **made} for (name, turns), made in pairs}
    lost = golden["no_reward"]["2/no_reward"]
    assert lost["reward"] is None and lost["advantage"] == 0 and lost["trained"] > 0
    lost["why"] = NO_REWARD_WHY
    write_cases(OUT / "tools.json", golden)
    save_file(gradients, OUT / "tools_gradients.safetensors")
    save_file(changes, OUT / "tools_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
