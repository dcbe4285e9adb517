"""The losses over judged completions by TRL's KTOTrainer. A part of make_trl_goldens.py.

A case has two sets of hidden states: of the rows' own completions, whose gradient is wanted, and of
the mismatched ones, from which the trainer estimates z. Where a case is `flipped`, policy and
reference change places on the mismatched ones, so that their mean log-ratio has the other sign.
"""

import types

import torch
from trl.experimental.kto import KTOTrainer

from trl_stand_ins import PAD, VOCAB, WIDTH, Head, bare, in_both_precisions, leaf, put, record

LENGTH = 9
PROMPTS = torch.tensor([1, 3, 2, 1, 2, 1])
OWN = torch.tensor([9, 5, 7, 2, 6, 8])
OTHER = torch.tensor([7, 9, 3, 5, 9, 4])
LABELS = [True, False, True, True, False, True]
METRICS = ["rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"]


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

    def forward(self, input_ids=None, **kwargs):
        if input_ids is not self.other_ids and not torch.equal(input_ids, self.other_ids):
            return super().forward(input_ids)
        return types.SimpleNamespace(logits=self.other_hidden @ self.weight.T)


def bare_kto(loss_type, beta, desirable_weight, undesirable_weight, **attributes):
    """A KTOTrainer, as make_kto_goldens.py of tests/recipes trains with."""
    return bare(
        KTOTrainer,
        args=types.SimpleNamespace(use_liger_kernel=False),
        aux_loss_enabled=False,
        loss_type=loss_type,
        calculate_KL=loss_type == "kto",
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
        **attributes,
    )


def kto_batch(s):
    batch = {"label": LABELS}
    for prefix, part in (("completion", s["own"]), ("KL_completion", s["other"])):
        batch[f"{prefix}_input_ids"] = part["ids"]
        batch[f"{prefix}_attention_mask"] = part["attention"]
        batch[f"{prefix}_labels"] = part["ids"].masked_fill(part["mask"] == 0, -100)
    return batch


def means(metrics):
    """What KTOTrainer.log makes of a batch's sums."""
    values = {"kl": metrics["kl"]}
    for key in METRICS:
        side = key.split("/")[1]
        values[key] = metrics[f"{key}_sum"] / metrics[f"count/{side}"]
    return values


def run_kto(s, flipped, **options):
    sides = ("reference", "hidden") if flipped else ("hidden", "reference")

    def run(dtype):
        hidden, weight = leaf(s["own"]["hidden"], dtype), leaf(s["weight"], dtype)
        other, other_reference = (s["other"][side].to(dtype) for side in sides)
        reference = s["own"]["reference"].to(dtype)
        model = TwoHeads(hidden, weight, s["other"]["ids"], other)
        frozen = TwoHeads(reference, s["weight"].to(dtype), s["other"]["ids"], other_reference)
        trainer = bare_kto(ref_model=frozen, **options)
        loss, metrics = trainer.get_batch_loss_metrics(model, kto_batch(s))
        return loss, hidden, weight, {key: repr(value) for key, value in means(metrics).items()}

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
