"""Reference values of ULD and GOLD, computed by TRL 1.16.0's own ULDLoss.

Run:  python tests/losses/make_uld_goldens.py
(trl 1.16.0, torch 2.11; writes uld_goldens.txt and uld_goldens.bin beside itself, in the format of
trl_goldens.txt)

Two sequences of bytes that two tokenizers cut at other places, each behind a prompt of its own
length. The leaves are the hidden states of the positions that predict a token of the answer, packed
one after the other, as linear_uld.h takes them; everywhere else the hidden states are zeros. A
group's weight is what makes TRL's mean over groups and sequences of the sum over groups.

Records:  uld NAME set=... temperature=... ce=... loss=... loss32=...  and for GOLD beta=...
matched=... unmatched=...; its gradients are the tensors NAME.dh and NAME.dw.
Tensors of a set: hidden, weight, targets, teacher_hidden, teacher_weight, teacher_targets,
groups [G, 5] (rows of the student, of the teacher, weight), matched [M, 2] (student, teacher).
"""

import pathlib
import types

import numpy as np
import torch
import trl
from trl.experimental.gold.gold_trainer import ULDLoss

from trl_stand_ins import floats, in_both_precisions, leaf, lines, put, record

HERE = pathlib.Path(__file__).parent

# Where the tokens of each answer end, in bytes. Groups of the first: 1:1, 2:1, 1:3, 2:2; of the
# second: 1:1, 3:2, and what is left when one side has ended (its last tokens end at other bytes).
STUDENT_ENDS = [[2, 5, 7, 13, 15, 18, 20], [3, 4, 8, 9, 12, 14]]
TEACHER_ENDS = [[2, 7, 9, 11, 13, 14, 18, 20], [3, 6, 9, 11]]
STUDENT_PROMPTS, TEACHER_PROMPTS = [2, 1], [3, 2]


class Side:
    """The tokens of one tokenizer, and hidden states of the rows that predict the answers'."""

    def __init__(self, g, vocab, width, ends, prompts):
        self.ends, self.prompts, self.vocab = ends, prompts, vocab
        self.length = max(p + len(e) for p, e in zip(prompts, ends))
        self.rows = [p + k - 1 + i * self.length for i, (p, e) in enumerate(zip(prompts, ends))
                     for k in range(len(e))]  # fmt: skip
        self.hidden = torch.randn(len(self.rows), width, generator=g)
        self.weight = 1.2 * torch.randn(vocab, width, generator=g)
        self.ids = torch.randint(0, vocab, (len(ends), self.length), generator=g)
        self.labels = torch.full_like(self.ids, -100)
        self.offsets = torch.zeros(len(ends), self.length, 2, dtype=torch.long)
        for i, (prompt, answer) in enumerate(zip(prompts, ends)):
            span = slice(prompt, prompt + len(answer))
            self.labels[i, span] = self.ids[i, span]
            self.offsets[i, span] = torch.tensor(list(zip([0] + answer[:-1], answer)))
        self.targets = self.ids.reshape(-1)[torch.tensor(self.rows) + 1]

    def logits(self, hidden, weight):
        padded = torch.zeros(len(self.ends) * self.length, hidden.shape[1], dtype=hidden.dtype)
        padded = padded.index_copy(0, torch.tensor(self.rows), hidden)
        return (padded @ weight.T).view(len(self.ends), self.length, -1)


def groups_of(student, teacher, skip_eos):
    """TRL's groups as rows, with the weight that each has in TRL's mean."""
    table, student_base, teacher_base = [], 0, 0
    for s_ends, t_ends in zip(student.ends, teacher.ends):
        last = -1 if skip_eos else None
        pairs = lambda ends: [[0, end] for end in ends[:last]]
        aligned = ULDLoss._align_by_byte_offsets(pairs(s_ends), pairs(t_ends))
        both = [(s, t) for s, t in zip(*aligned) if s and t]
        for s, t in both:
            rows = [student_base + s[0], student_base + s[-1] + 1]
            rows += [teacher_base + t[0], teacher_base + t[-1] + 1]
            table.append(rows + [1 / (len(both) * len(student.ends))])
        student_base, teacher_base = student_base + len(s_ends), teacher_base + len(t_ends)
    return torch.tensor(table)


def tokenizer(vocab, names):
    return types.SimpleNamespace(get_vocab=lambda: {names.get(i, i): i for i in range(vocab)})


def run_uld(student, teacher, matched, temperature, skip_eos, ce, gold):
    config = types.SimpleNamespace(
        uld_crossentropy_weight=ce,
        uld_distillation_weight=1.0,
        uld_student_temperature=temperature,
        uld_teacher_temperature=temperature,
        uld_skip_student_eos=skip_eos,
        uld_skip_teacher_eos=skip_eos,
        use_extended_uld=True,
        uld_token_merge_strategy="bayesian",
        uld_use_hybrid_loss=gold is not None,
        uld_hybrid_matched_weight=gold and gold["weights"] and gold["weights"][0],
        uld_hybrid_unmatched_weight=gold and gold["weights"] and gold["weights"][1],
        beta=gold["beta"] if gold else 1.0,
    )
    # Ids that are no pair have names that the other side does not know.
    names = [{pair[side]: f"token {n}" for n, pair in enumerate(matched)} for side in (0, 1)]
    alone = [
        {i: f"{kind} {i}" for i in range(side.vocab)} | names[n]
        for n, (kind, side) in enumerate((("student", student), ("teacher", teacher)))
    ]
    tokenizers = tokenizer(student.vocab, alone[0]), tokenizer(teacher.vocab, alone[1])
    loss_fn = ULDLoss(config, *tokenizers)

    def run(dtype):
        hidden, weight = leaf(student.hidden, dtype), leaf(student.weight, dtype)
        loss = loss_fn(
            student.logits(hidden, weight),
            teacher.logits(teacher.hidden.to(dtype), teacher.weight.to(dtype)),
            student.labels,
            teacher.labels,
            student.ids,
            teacher.ids,
            student.offsets,
            teacher.offsets,
        )
        return loss, hidden, weight, {}

    return run


def make_set(name, seed, vocab, teacher_vocab, skip_eos):
    g = torch.Generator().manual_seed(seed)
    student = Side(g, vocab, 5, STUDENT_ENDS, STUDENT_PROMPTS)
    teacher = Side(g, teacher_vocab, 6, TEACHER_ENDS, TEACHER_PROMPTS)
    shared = min(vocab, teacher_vocab) - 4
    matched = list(
        zip(
            torch.randperm(vocab, generator=g)[:shared].tolist(),
            torch.randperm(teacher_vocab, generator=g)[:shared].tolist(),
        )
    )
    put(f"{name}.hidden", student.hidden)
    put(f"{name}.weight", student.weight)
    put(f"{name}.targets", student.targets)
    put(f"{name}.teacher_hidden", teacher.hidden)
    put(f"{name}.teacher_weight", teacher.weight)
    put(f"{name}.teacher_targets", teacher.targets)
    put(f"{name}.groups", groups_of(student, teacher, skip_eos))
    put(f"{name}.matched", torch.tensor(matched))

    golds = [None] + [{"beta": b, "weights": (0.3, 0.8)} for b in (0.0, 0.5, 1.0)]
    golds.append({"beta": 0.5, "weights": None})
    adaptive = shared / teacher_vocab
    n = 0
    for temperature in (1.0, 2.0):
        for gold in golds:
            for ce in (0.0, 0.4) if gold is None else (0.0,):
                case = f"{name}{n}"
                n += 1
                values = {"set": name, "temperature": temperature}
                values["ce"] = repr(ce / len(student.rows))
                if gold:
                    weights = gold["weights"] or (adaptive, 1 - adaptive)
                    values |= {"beta": gold["beta"]}
                    values |= {"matched": repr(weights[0]), "unmatched": repr(weights[1])}
                run = run_uld(student, teacher, matched, temperature, skip_eos, ce, gold)
                record("uld", case, values | in_both_precisions(case, run))


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    make_set("a", 21, 13, 19, skip_eos=False)
    make_set("b", 22, 19, 13, skip_eos=True)

    data = np.concatenate(floats).astype("<f4")
    data.tofile(HERE / "uld_goldens.bin")
    (HERE / "uld_goldens.txt").write_text("\n".join(lines) + "\n")
    print(sum(not line.startswith("tensor") for line in lines), "cases,", data.nbytes, "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
