"""Numbers of policy_1_16_test.cc: what TRL 1.16 says of each token's log-probability, where no
model stands between.

Run:  python tests/losses/print_policy_1_16.py   (trl 1.16, torch 2.11)

The log-probabilities and entropies of a few tokens stand for the model; the loss is that of
GRPOTrainer._compute_loss in float64, its entropy threshold that of get_high_entropy_mask.
"""

import types
from collections import defaultdict

import torch
import trl
from trl import GRPOTrainer

LENGTHS = [3, 5, 2, 4]  # of the completions, of which the third was cut off
LONGEST = 5


class OneProcess:
    """What the trainer asks of accelerate."""

    device, num_processes, process_index = torch.device("cpu"), 1, 0
    gather = staticmethod(lambda tensor: tensor)
    reduce = staticmethod(lambda tensor, reduction: tensor)
    pad_across_processes = staticmethod(lambda tensor, dim, pad_index: tensor)


class Trainer(GRPOTrainer):
    def __init__(self, numbers, **options):
        self.numbers = numbers
        self.accelerator = OneProcess()
        self.model = types.SimpleNamespace(training=True)
        self._metrics = {"train": defaultdict(list)}
        options = OPTIONS | options
        self.args = types.SimpleNamespace(
            delta=None,
            use_bias_correction_kl=options.pop("use_bias_correction_kl"),
            steps_per_generation=1,
        )
        for key, value in options.items():
            setattr(self, key, value)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self.numbers["policy"], self.numbers["entropy"], None


OPTIONS = dict(
    loss_type="dapo",
    importance_sampling_level="token",
    epsilon_low=0.2,
    epsilon_high=0.2,
    beta=0.0,
    use_bias_correction_kl=True,
    top_entropy_quantile=1.0,
    off_policy_mask_threshold=None,
    use_vllm=False,
    vllm_importance_sampling_correction=False,
    aux_loss_enabled=False,
    _entropy_bonus_enabled=False,
    current_gradient_accumulation_steps=1,
    max_completion_length=LONGEST,
)


def make_numbers():
    g = torch.Generator().manual_seed(31)
    rounded = lambda t: torch.round(t * 1000) / 1000
    shape = (len(LENGTHS), LONGEST)
    policy = rounded(-3 * torch.rand(shape, generator=g, dtype=torch.float64) - 0.1)
    near = lambda by: rounded(policy + by * torch.randn(shape, generator=g, dtype=torch.float64))
    entropy = rounded(2 * torch.rand(shape, generator=g, dtype=torch.float64))
    return {"policy": policy, "old": near(0.3), "reference": near(0.8), "entropy": entropy}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    numbers = make_numbers()
    mask = (torch.arange(LONGEST)[None] < torch.tensor(LENGTHS)[:, None]).long()
    mask[2] = 0  # mask_truncated_completions
    rows = lambda t: ", ".join(f"{value:.9g}" for value in t[mask.bool()].tolist())
    for name in ("policy", "old", "reference", "entropy"):
        print(name, rows(numbers[name]))

    sequence = dict(importance_sampling_level="sequence")
    kl, quantile = dict(beta=0.5), lambda q: dict(top_entropy_quantile=q)
    cases = {
        "token": kl,
        "token_grpo": kl | dict(loss_type="grpo"),
        "sequence": kl | sequence,
        "sequence_grpo": kl | sequence | dict(loss_type="grpo"),
        "cispo": kl | dict(loss_type="cispo", epsilon_high=1.1),
        "cispo_sequence": kl | sequence | dict(loss_type="cispo", epsilon_high=1.1),
        "uncorrected": kl | dict(use_bias_correction_kl=False),
        "entropy": kl | quantile(0.4),
        "entropy_sequence": sequence | quantile(0.25) | dict(loss_type="grpo"),
    }
    for name, options in cases.items():
        leaves = dict(numbers, policy=numbers["policy"].clone().requires_grad_())
        batch = {
            "prompt_ids": torch.zeros(4, 1).long(),
            "prompt_mask": torch.ones(4, 1).long(),
            "completion_ids": torch.zeros(4, LONGEST).long(),
            "completion_mask": mask,
            "advantages": torch.tensor([1.0, -0.5, 9.0, 0.25], dtype=torch.float64),
            "num_items_in_batch": mask.sum(),  # as _generate_and_score_completions counts them
            "old_per_token_logps": numbers["old"],
            "ref_per_token_logps": numbers["reference"],
        }
        trainer = Trainer(leaves, **options)
        loss = trainer._compute_loss(None, batch)
        loss.backward()
        kept = trainer._metrics["train"]
        print(name, f"{loss.item():.9g} kl {kept['kl'][0] if 'kl' in kept else 0:.9g}")
        print("  ", rows(leaves["policy"].grad))

    for quantile in (0.0, 0.1, 0.25, 0.4, 0.5, 0.9):
        kept = trainer.get_high_entropy_mask(numbers["entropy"], mask, 1 - quantile)
        print("quantile", quantile, kept[mask.bool()].long().tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
