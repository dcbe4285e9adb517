"""Goldens of distillation from a teacher with another tokenizer (distill.cross_tokenizer): 5 AdamW
steps whose loss is TRL 1.16's own ULDLoss, called as it is, fp32, one process, padded batches; and
what TRL's whole GOLDTrainer logs of the same rows.

Run:  python tests/recipes/make_cross_goldens.py
by functions of make_goldens.py and make_trainer_goldens.py (trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: cross_student/ and cross_teacher/, nano models of two families
with byte-level tokenizers that cut words and numbers otherwise; cross_letters/, a tokenizer without
merges, in which every sequence of tokens is what its text is cut into; cross_rows.jsonl; cross.json
with each case's recipe ($GOLDENS and $RUN stand for folders) and the columns that a run of it
reports; cross_changes.safetensors as make_goldens.py's.

ULDLoss matches tokens by their names, Retort by their bytes, and those that end a text or fill a
row by what they do. For bytes this is the same, as both tokenizers write them alike; for the others
ULDLoss is given tokenizers that name them alike.
"""

import collections
import json
import random
from types import SimpleNamespace

import torch
import trl
from make_goldens import (
    LR,
    OUT,
    ROWS,
    STEPS,
    batch_of,
    build,
    change_of,
    own_parameters,
    write_cases,
)
from make_trainer_goldens import load, logged, rows_of, settings
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch.utils.data import SequentialSampler
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.experimental.gold import GOLDConfig, GOLDTrainer
from trl.experimental.gold.gold_trainer import ULDLoss
from trl.experimental.utils import encode_with_byte_offsets

RECIPE = """\
recipe: distill
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/cross_student, world: {{dp: 1, threads: 1}}}}
  teacher: {{model: $GOLDENS/cross_teacher, world: {{dp: 1, threads: 1}}}}
data:
  train: [{{path: $GOLDENS/cross_rows.jsonl}}]
  max_length: 96
  packing: false
  shuffle: false
train:
  max_steps: 5
  per_device_train_batch_size: 4
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
distill:
{distill}"""

# ---- tokenizers
WORDS = """
student teacher token house river number letter reading writing quickly slowly the a of and in small
large blue green walks learns teaches counts answers lives near under again never
""".split()
# Llama 3's and Qwen's: numbers of up to three digits, and single ones.
STUDENT_CUT = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
TEACHER_CUT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def sentences(count, seed, favoured=WORDS):
    """Lines of WORDS, those of `favoured` mostly, and of numbers."""
    source = random.Random(seed)
    weights = [20 if word in favoured else 1 for word in WORDS]
    for _ in range(count):
        words = source.choices(WORDS, weights, k=source.randint(3, 6))
        words.insert(source.randint(1, 3), str(source.choice((7, 12, 12, 12, 2026))))
        yield " ".join(words).capitalize() + source.choice(".?!")


def byte_level(size, cut, lines, special=()):
    """A BPE of `size` tokens; those that are `special` come first."""
    tokenizer = Tokenizer(BPE())
    isolated = pre_tokenizers.Split(Regex(cut), "isolated")
    bytes_of_it = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([isolated, bytes_of_it])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def letters():
    tokens = sorted(" abcdefghijklmnopqrstuvwxyz0123456789.,?!")
    vocabulary = {"Ġ" if token == " " else token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def saver(tokenizer, *special):
    """What writes it to a folder, with <pad> and <eos> of these names, or the latter alone."""
    named = dict(zip(("eos_token", "pad_token"), special))

    def save(folder):
        folder.mkdir(exist_ok=True)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
        fast.save_pretrained(folder)
        path = folder / "tokenizer.json"
        small = json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":"))
        path.write_text(small + "\n")

    return save


# The ends of texts and the padding have other names and ids on the two sides.
STUDENT_SPECIAL, TEACHER_SPECIAL = ("<|end|>", "<|fill|>"), ("</s>", "<unused>")


def build_models():
    """Each tokenizer knows every second word as one token, and cuts the others."""
    student = byte_level(328, STUDENT_CUT, sentences(300, 1, WORDS[::2]))
    teacher = byte_level(380, TEACHER_CUT, sentences(300, 2, WORDS[1::2]), TEACHER_SPECIAL)
    ids = dict(vocab_size=330, eos_token_id=328, pad_token_id=329, tie_word_embeddings=True)
    save = saver(student, *STUDENT_SPECIAL)
    build("cross_student", LlamaConfig, LlamaForCausalLM, 31, tokenizer=save, **ids)
    ids = dict(vocab_size=380, eos_token_id=0, pad_token_id=1, tie_word_embeddings=False)
    save = saver(teacher, *TEACHER_SPECIAL)
    build("cross_teacher", Qwen3Config, Qwen3ForCausalLM, 32, tokenizer=save, head_dim=8, **ids)
    saver(letters(), "<eos>")(OUT / "cross_letters")


# ---- rows
def make_rows(path):
    source = random.Random(5)
    said = list(sentences(2 * ROWS * STEPS, 14))
    others = ["🙂", "学生", "12345", "café", ",  two", "\n1. one\n2. two", "zebra"]
    rows = []
    for i in range(ROWS * STEPS):
        words = said[2 * i + 1].split()
        words.insert(source.randint(1, len(words)), others[i % len(others)])
        rows.append({"prompt": said[2 * i], "completion": " " + " ".join(words)})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return rows


def read(tokenizer, row):
    """Ids, labels and completion-relative byte offsets of a row, cut as one text with EOS."""
    text, begin = row["prompt"] + row["completion"], len(row["prompt"].encode())
    [(ids, offsets)] = encode_with_byte_offsets(tokenizer.backend_tokenizer, [text])
    [(alone, _)] = encode_with_byte_offsets(tokenizer.backend_tokenizer, [row["prompt"]])
    assert ids[: len(alone)] == alone, "a token spans the boundary, where TRL's trainer cuts twice"
    ids.append(tokenizer.eos_token_id)
    assert len(ids) <= 96, len(ids)
    end = len(row["completion"].encode())
    offsets = [(0, 0)] * len(alone) + [(s - begin, e - begin) for s, e in offsets[len(alone) :]]
    labels = [-100] * len(alone) + ids[len(alone) :]
    return {"input_ids": ids, "labels": labels, "offsets": offsets + [(end, end)]}


def padded(rows):
    ids, labels, mask = batch_of(rows)
    offsets = torch.zeros(*ids.shape, 2, dtype=torch.long)
    for i, row in enumerate(rows):
        offsets[i, : len(row["offsets"])] = torch.tensor(row["offsets"])
    return ids, labels, mask, offsets


def groups_of(student, teacher):
    """(student's tokens, teacher's) of each group of a row, the tokens that end it left out."""
    answer = lambda row: row["offsets"][row["labels"].count(-100) : -1]
    pairs = ULDLoss._align_by_byte_offsets(answer(student), answer(teacher))
    return [(len(s), len(t)) for s, t in zip(*pairs)]


# ---- cases
ULD, GOLD = {"cross_tokenizer": "uld"}, {"cross_tokenizer": "gold"}
CASES = {
    # At 1 two sorted probabilities are so near to each other in the second step that rounding
    # decides the sign of their difference, and with it the gradient.
    "uld": {**ULD, "payload": "hidden_states", "temperature": 0.8},
    "uld_full": {**ULD, "payload": "full", "temperature": 2.0},
    "uld_mixed": {**ULD, "payload": "hidden_states", "kd_ratio": 0.5},
    "gold": {**GOLD, "payload": "hidden_states", "gold": {"beta": 0.5}},
    "gold_reverse": {
        **GOLD,
        "payload": "hidden_states",
        "gold": {"matched_weight": 0.7, "unmatched_weight": 0.3, "beta": 1.0},
    },
}


def options_of(case, **more):
    """A case as GOLDConfig has it."""
    gold, ratio = case.get("gold", {}), case.get("kd_ratio", 1.0)
    return dict(
        uld_crossentropy_weight=1 - ratio,
        uld_distillation_weight=ratio,
        uld_student_temperature=case.get("temperature", 1.0),
        uld_teacher_temperature=case.get("temperature", 1.0),
        uld_skip_student_eos=True,
        uld_skip_teacher_eos=True,
        use_extended_uld=True,
        uld_token_merge_strategy="bayesian",
        uld_use_hybrid_loss=case["cross_tokenizer"] == "gold",
        uld_hybrid_matched_weight=gold.get("matched_weight"),
        uld_hybrid_unmatched_weight=gold.get("unmatched_weight"),
        beta=gold.get("beta", 0.5),
    ) | more


def alike(tokenizer):
    """A tokenizer whose special tokens have the names that the other's have."""
    vocabulary = tokenizer.get_vocab()
    vocabulary["<eos>"] = vocabulary.pop(tokenizer.eos_token)
    vocabulary["<pad>"] = vocabulary.pop(tokenizer.pad_token)
    return SimpleNamespace(get_vocab=lambda: vocabulary)


def uld_loss(case, tokenizers, kind=ULDLoss, **more):
    return kind(SimpleNamespace(**options_of(case, **more)), *map(alike, tokenizers))


class Parts(ULDLoss):
    """Keeps what each row's two parts of the hybrid loss are."""

    def _compute_hybrid_uld_loss(self, student, teacher):
        total = super()._compute_hybrid_uld_loss(student, teacher)
        parts = (self.last_matched_loss.item(), self.last_unmatched_loss.item())
        self.parts.append((student.size(0), *parts))
        return total


def columns_of_groups(students, teachers):
    """What a run reports of the groups of a step."""
    groups = [g for s, t in zip(students, teachers) for g in groups_of(s, t)]
    targets = sum(label != -100 for s in students for label in s["labels"])
    return {
        "one_to_one_groups": groups.count((1, 1)) / len(groups),
        "aligned_tokens": sum(mine for mine, _ in groups) / targets,
    }


def train(case, readings, tokenizers):
    model, teacher = load("cross_student"), load("cross_teacher").eval()
    total = uld_loss(case, tokenizers)
    alone = dict(uld_crossentropy_weight=0.0, uld_distillation_weight=1.0)
    distance = uld_loss(case, tokenizers, Parts, **alone)
    start, columns = own_parameters(model), collections.defaultdict(list)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for step in range(STEPS):
        # Both models on their own tokens of the same rows.
        students, teachers = ([r[i] for r in readings[step * ROWS :][:ROWS]] for i in (0, 1))
        ids, labels, mask, offsets = padded(students)
        teacher_ids, teacher_labels, teacher_mask, teacher_offsets = padded(teachers)
        logits = model(input_ids=ids, attention_mask=mask).logits
        with torch.no_grad():
            teacher_logits = teacher(input_ids=teacher_ids, attention_mask=teacher_mask).logits
        told = (logits, teacher_logits, labels, teacher_labels, ids, teacher_ids)
        loss = total(*told, student_byte_offsets=offsets, teacher_byte_offsets=teacher_offsets)

        # Its parts, as a run reports them.
        distance.parts = []
        with torch.no_grad():
            kd = distance(*told, student_byte_offsets=offsets, teacher_byte_offsets=teacher_offsets)
            ce = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        row = {"loss": loss.item(), "kd_loss": kd.item(), "ce_loss": ce.item()}
        row |= columns_of_groups(students, teachers)
        if distance.parts:
            sizes, *parts = zip(*distance.parts)
            for name, values in zip(("matched_loss", "unmatched_loss"), parts):
                row[name] = sum(n * value for n, value in zip(sizes, values)) / sum(sizes)

        # The update.
        optimizer.zero_grad()
        loss.backward()
        row["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        for key, value in row.items():
            columns[key].append(value)
    return dict(columns), change_of(model, start)


# ---- TRL's whole trainer
class InOrder(GOLDTrainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


def trainer_columns(case):
    """What GOLDTrainer logs of a case. It finds the special tokens by their names, so: uld only."""
    assert case["cross_tokenizer"] == "uld"
    options = dict(lmbda=0.0, use_uld_loss=True, max_length=96, max_completion_length=64)
    config = GOLDConfig(**settings(ROWS, 1, STEPS, **options, **options_of(case)))
    trainer = InOrder(
        model=load("cross_student"),
        teacher_model=load("cross_teacher"),
        args=config,
        train_dataset=rows_of("cross_rows.jsonl"),
        processing_class=AutoTokenizer.from_pretrained(OUT / "cross_student"),
    )
    return logged(trainer, ())


def yaml_of(case):
    return "".join(f"  {key}: {json.dumps(value)}\n" for key, value in case.items())


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    build_models()
    rows = make_rows(OUT / "cross_rows.jsonl")
    names = ("cross_student", "cross_teacher")
    tokenizers = [AutoTokenizer.from_pretrained(OUT / name) for name in names]
    for name, tokenizer in zip(names, tokenizers):
        config = json.loads((OUT / name / "config.json").read_text())
        assert config["vocab_size"] == len(tokenizer), name
        assert config["eos_token_id"] == tokenizer.eos_token_id, name
        assert config["pad_token_id"] == tokenizer.pad_token_id, name
    readings = [[read(tokenizer, row) for tokenizer in tokenizers] for row in rows]

    # The rows have groups of all kinds, and the vocabularies share some tokens but not all.
    kinds = collections.Counter(g for pair in readings for g in groups_of(*pair))
    assert all(kinds[kind] > 0 for kind in ((1, 1), (2, 1), (1, 2), (1, 3), (2, 2))), kinds
    shared = len(uld_loss(CASES["gold"], tokenizers)._teacher_matched_ids)
    assert 256 + 2 < shared < 328, shared

    expected, changes = {}, {}
    for name, case in CASES.items():
        columns, changes[name] = train(case, readings, tokenizers)
        expected[name] = {"recipe": RECIPE.format(distill=yaml_of(case)), **columns}
    recipe = expected["uld_mixed"]["recipe"]
    expected["trainer"] = {"recipe": recipe, **trainer_columns(CASES["uld_mixed"])}
    write_cases(OUT / "cross.json", expected)
    save_file(changes, OUT / "cross_changes.safetensors")
    print(f"{shared} tokens are shared; groups: {dict(kinds)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
