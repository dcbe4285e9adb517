"""The losses over judged completions by TRL's KTOTrainer. A part of make_trl_goldens.py.

A case has two sets of hidden states: of the rows' own completions, whose gradient is wanted, and of
the mismatched ones, from which the trainer estimates z. Where a case is `flipped`, policy and
reference change places on the mismatched ones, so that their mean log-ratio has the other sign.
"""

import types

import torch
from trl import KTOTrainer

from trl_stand_ins import PAD, VOCAB, WIDTH, Head, bare, in_both_precisions, leaf, put, record

LENGTH = 9
PROMPTS = torch.tensor([1, 3, 2, 1, 2, 1])
OWN = torch.tensor([9, 5, 7, 2, 6, 8])
OTHER = torch.tensor([7, 9, 3, 5, 9, 4])
LABELS = [True, False, True, True, False, True]
METRICS = [
    "kl",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
]


def completions(name, lengths, spread, g):
    """Padded rows of tokens, hidden states of a policy and of a reference."""
    place = torch.arange(LENGTH)[None]
    attention = (place < lengths[:, None]).long()
    hidden = torch.randn(len(lengths), LENGTH, WIDTH, generator=g)
    words = torch.randint(2, VOCAB, attention.shape, generator=g)
    s = {
        "hidden": hidden,
        "reference": hidden + spread * torch.randn(hidden.shape, generator=g),
        "ids": torch.where(attention.bool(), words, PAD),
        "mask": attention * (place >= PROMPTS[:, None]),
    }
    for key, value in s.items():
        put(f"kto.{name}.{key}", value)
    return s | {"attention": attention}


def make_completions():
    g = torch.Generator().manual_seed(31)
    s = {"own": completions("own", OWN, 0.5, g), "other": completions("other", OTHER, 0.3, g)}
    s["weight"] = torch.randn(VOCAB, WIDTH, generator=g)
    put("kto.weight", s["weight"])
    put("kto.desirable", torch.tensor(LABELS).long())
    return s


class TwoHeads(Head):
    """The hidden states of the mismatched completions where the tokens are theirs."""

    def __init__(self, hidden, weight, other_ids, other_hidden):
        super().__init__(hidden, weight)
        self.other_ids, self.other_hidden = other_ids, other_hidden

    def hidden_of(self, input_ids):
        if input_ids is not self.other_ids and not torch.equal(input_ids, self.other_ids):
            return super().hidden_of(input_ids)
        return self.other_hidden


def bare_kto(loss_type, beta, desirable_weight, undesirable_weight, **attributes):
    """A KTOTrainer, as make_kto_goldens.py of tests/recipes trains with."""
    return bare(
        KTOTrainer,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
        precompute_ref_logps=False,
        aux_loss_enabled=False,
        _tp_size=1,
        _total_train_tokens=0,
        loss_type=loss_type,
        calculate_KL=loss_type == "kto",
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
        **attributes,
    )


def kto_batch(s):
    batch = {"label": torch.tensor(LABELS)}
    for prefix, part in (("", s["own"]), ("KL_", s["other"])):
        batch[f"{prefix}input_ids"] = part["ids"]
        batch[f"{prefix}attention_mask"] = part["attention"]
        batch[f"{prefix}completion_mask"] = part["mask"]
    return batch


def run_kto(s, flipped, **options):
    sides = ("reference", "hidden") if flipped else ("hidden", "reference")

    def run(dtype):
        hidden, weight = leaf(s["own"]["hidden"], dtype), leaf(s["weight"], dtype)
        other, other_reference = (s["other"][side].to(dtype) for side in sides)
        reference = s["own"]["reference"].to(dtype)
        model = TwoHeads(hidden, weight, s["other"]["ids"], other)
        frozen = TwoHeads(reference, s["weight"].to(dtype), s["other"]["ids"], other_reference)
        trainer = bare_kto(model=model, ref_model=frozen, **options)
        loss = trainer._compute_loss(model, kto_batch(s), False)
        metrics = trainer._metrics["train"]
        return loss, hidden, weight, {key: repr(metrics[key][-1]) for key in METRICS}

    return run


def make_kto(s):
    n = 0

    def add(loss_type, beta, flipped=False, weights=(1.0, 1.0)):
        nonlocal n
        name = f"k{n}"
        n += 1
        desirable, undesirable = weights
        options = {"loss_type": loss_type, "beta": beta}
        options |= {"desirable_weight": desirable, "undesirable_weight": undesirable}
        values = in_both_precisions(name, run_kto(s, flipped, **options))
        assert (float(values["kl"]) > 0) == (loss_type == "kto" and not flipped), values["kl"]
        record("kto", name, {**options, "flipped": int(flipped), **values})

    for beta in (0.1, 0.8):
        for flipped in (False, True):
            add("kto", beta, flipped)
        add("kto", beta, weights=(1.3, 0.6))
        add("apo_zero_unpaired", beta)
        add("apo_zero_unpaired", beta, weights=(0.7, 2.0))
