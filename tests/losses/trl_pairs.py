"""Losses over pairs by TRL's trainers, chosen above rejected: preferences and the generalized
Jensen-Shannon divergence. A part of make_trl_goldens.py.

A prompt has one token, so that ORPO's cross-entropy over prompt and completion is over the
completion.
"""

import types

import torch
from trl import DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer

from trl_stand_ins import PAD, VOCAB, WIDTH, Head, bare, in_both_precisions, leaf, put, record

PAIRS, LENGTH = 4, 10
METRICS = [
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
]


def make_pairs():
    g = torch.Generator().manual_seed(11)
    normal = lambda *shape: torch.randn(*shape, generator=g)
    lengths = torch.tensor([10, 4, 7, 2, 6, 9, 3, 8])
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    hidden = normal(2 * PAIRS, LENGTH, WIDTH)
    s = {
        "hidden": hidden,
        "reference": hidden + 0.5 * normal(2 * PAIRS, LENGTH, WIDTH),
        "weight": normal(VOCAB, WIDTH),
        "teacher_weight": 1.3 * normal(VOCAB, WIDTH),
        "ids": torch.where(mask.bool(), torch.randint(2, VOCAB, mask.shape, generator=g), PAD),
        "attention": mask,
        "mask": mask * (torch.arange(LENGTH) > 0),
    }
    # One that puts every pair at another place than the policy does.
    s["far_reference"] = hidden.roll(1, 0)
    for key, value in s.items():
        put(f"pairs.{key}", value)
    return s


def plain_metrics(metrics):
    last = lambda value: value[-1] if isinstance(value, list) else value
    return {key: repr(float(last(metrics[key]))) for key in METRICS}


def bare_dpo(losses, weights, discopop_tau=0.05, **attributes):
    """A DPOTrainer of these losses, as make_preference_goldens.py of tests/recipes trains with."""
    return bare(
        DPOTrainer,
        precompute_ref_logps=False,
        aux_loss_enabled=False,
        _tp_size=1,
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        loss_types=losses,
        loss_weights=weights,
        use_weighting=False,
        _total_train_tokens=0,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None, discopop_tau=discopop_tau),
        **attributes,
    )


def run_dpo(s, losses, weights, beta, smoothing, reference="reference", **more):
    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        model = Head(hidden, weight)
        ref_model = Head(s[reference].to(dtype), s["weight"].to(dtype))
        options = dict(beta=beta, label_smoothing=smoothing, **more)
        trainer = bare_dpo(losses, weights, model=model, ref_model=ref_model, **options)

        batch = {"input_ids": s["ids"], "attention_mask": s["attention"]}
        loss = trainer._compute_loss(model, batch | {"completion_mask": s["mask"]}, False)
        return loss, hidden, weight, plain_metrics(trainer._metrics["train"])

    return run


def preference_batch(s):
    labels = s["ids"].masked_fill(s["mask"] == 0, -100)
    parts = {"input_ids": s["ids"], "attention_mask": s["attention"], "labels": labels}
    batch = {}
    for side, rows in (("chosen", slice(0, PAIRS)), ("rejected", slice(PAIRS, None))):
        for key, value in parts.items():
            batch[f"{side}_{key}"] = value[rows]
    return batch


def run_reference_free(s, trainer_class, beta, **attributes):
    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        trainer = bare(
            trainer_class,
            is_encoder_decoder=False,
            pad_token_id=PAD,
            padding_value=PAD,
            aux_loss_enabled=False,
            beta=beta,
            **attributes,
        )
        loss, metrics = trainer.get_batch_loss_metrics(Head(hidden, weight), preference_batch(s))
        return loss, hidden, weight, plain_metrics(metrics)

    return run


def run_cdpo(s, beta, smoothing):
    """CPOTrainer's sigmoid loss, the one in TRL that still smooths labels, on the log-ratios to a
    reference."""

    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        options = dict(loss_type="sigmoid", label_smoothing=smoothing, beta=beta)
        trainer = bare(CPOTrainer, alpha=0.0, **options)

        labels = s["ids"].masked_fill(s["mask"] == 0, -100)
        reference_logits = s["reference"].to(dtype) @ s["weight"].to(dtype).T
        policy = trainer.get_batch_logps(hidden @ weight.T, labels)
        reference = trainer.get_batch_logps(reference_logits, labels)
        chosen, rejected = (policy - reference).chunk(2)
        losses, chosen_rewards, rejected_rewards = trainer.cpo_loss(chosen, rejected)

        # What DPOTrainer would report.
        metrics = {
            "rewards/chosen": chosen_rewards.mean(),
            "rewards/rejected": rejected_rewards.mean(),
            "rewards/margins": (chosen_rewards - rejected_rewards).mean(),
            "rewards/accuracies": (chosen_rewards > rejected_rewards).float().mean(),
            "logps/chosen": policy[:PAIRS].detach().mean(),
            "logps/rejected": policy[PAIRS:].detach().mean(),
        }
        return losses.mean(), hidden, weight, plain_metrics(metrics)

    return run


def make_preferences(s):
    n = 0

    def add(run, losses, beta, weights=(), smoothing=0.0, gamma=0.5, tau=0.05, ref="reference"):
        nonlocal n
        name = f"p{n}"
        n += 1
        values = {"losses": ",".join(losses), "weights": ",".join(str(w) for w in weights) or "-"}
        values |= {"beta": beta, "smoothing": smoothing, "gamma": gamma, "tau": tau}
        values["reference"] = ref
        record("preference", name, values | in_both_precisions(name, run))

    for beta in (0.1, 0.8):
        # DPOTrainer's losses one by one. "sft" alone needs no reference here: other metrics than
        # DPOTrainer's.
        for loss in ("sigmoid", "hinge", "ipo", "sigmoid_norm", "apo_zero", "apo_down"):
            add(run_dpo(s, [loss], [1.0], beta, 0.0), [loss], beta)
        add(run_dpo(s, ["robust"], [1.0], beta, 0.2), ["robust"], beta, smoothing=0.2)
        add(run_cdpo(s, beta, 0.2), ["cdpo"], beta, smoothing=0.2)

        # Sums of several.
        losses, weights = ["sigmoid", "sft"], [1.0, 0.7]
        add(run_dpo(s, losses, weights, beta, 0.0), losses, beta, weights)
        losses, weights = ["apo_down", "hinge", "robust"], [0.5, 2.0, 0.3]
        add(run_dpo(s, losses, weights, beta, 0.1), losses, beta, weights, 0.1)

        # The losses without a reference.
        simpo = dict(alpha=0.0, loss_type="simpo", label_smoothing=0.0)
        for gamma in (0.5, 1.4):
            options = dict(simpo_gamma=gamma, cpo_alpha=0.0, **simpo)
            run = run_reference_free(s, CPOTrainer, beta, **options)
            add(run, ["simpo"], beta, gamma=gamma)
        run = run_reference_free(s, CPOTrainer, beta, simpo_gamma=0.3, cpo_alpha=0.6, **simpo)
        add(run, ["simpo", "sft"], beta, [1.0, 0.6], gamma=0.3)
        add(run_reference_free(s, ORPOTrainer, beta), ["orpo"], beta)

    for beta in (0.1, 0.8):
        for loss in ("nca_pair", "bco_pair", "sppo_hard"):
            add(run_dpo(s, [loss], [1.0], beta, 0.0), [loss], beta)
        add(run_dpo(s, ["exo_pair"], [1.0], beta, 0.2), ["exo_pair"], beta, smoothing=0.2)
        # Far from 0 and steep, float32 says little: the script would refuse it.
        for tau in (0.05, 0.4) if beta == 0.1 else (0.4,):
            run = run_dpo(s, ["discopop"], [1.0], beta, 0.0, discopop_tau=tau)
            add(run, ["discopop"], beta, tau=tau)
        # Pairs are compared with others of the batch.
        far = "far_reference"
        for loss, smoothing in (("aot", 0.0), ("aot", 0.2), ("aot_unpaired", 0.2)):
            run = run_dpo(s, [loss], [1.0], beta, smoothing, far)
            add(run, [loss], beta, smoothing=smoothing, ref=far)
        losses, weights = ["aot_unpaired", "sft", "aot"], [0.5, 0.2, 2.0]
        add(run_dpo(s, losses, weights, beta, 0.0, far), losses, beta, weights, ref=far)


def run_jsd(s, **options):
    labels = s["ids"].masked_fill(s["mask"] == 0, -100)

    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        teacher = s["reference"].to(dtype) @ s["teacher_weight"].to(dtype).T
        loss = GKDTrainer.generalized_jsd_loss(hidden @ weight.T, teacher, labels, **options)
        return loss, hidden, weight, {}

    return run


def make_jsd(s):
    n = 0
    for beta in (0.0, 0.1, 0.5, 0.9, 1.0):
        for temperature in (1.0, 0.7, 2.0):
            name = f"j{n}"
            n += 1
            options = {"beta": beta, "temperature": temperature}
            record("jsd", name, options | in_both_precisions(name, run_jsd(s, **options)))
