"""Reference values of the preference, policy and distillation losses, computed by TRL 1.16.0's own
methods.

Run:  python tests/losses/make_trl_goldens.py
(trl 1.16.0, torch 2.11; writes trl_goldens.txt and trl_goldens.bin beside itself)

TRL's trainers are made without their constructors and given the attributes that their loss methods
read; the model is a linear head on hidden states that are the leaves. Called as they are:
DPOTrainer._compute_loss, CPOTrainer.get_batch_loss_metrics and cpo_loss,
ORPOTrainer.get_batch_loss_metrics, GKDTrainer.generalized_jsd_loss,
GRPOTrainer._generate_and_score_completions (advantages, old and generator ratios) and
_compute_loss, RLOOTrainer._generate_and_score_completions, KTOTrainer._compute_loss.

trl_goldens.txt, one record a line:
  tensor NAME OFFSET DIM...     float32 data at OFFSET (in floats) of trl_goldens.bin
  preference | jsd | policy | advantages | kto NAME key=value ...
                                its gradients are the tensors NAME.dh and NAME.dw
Values and gradients come from float64 hidden states; `loss32` is the same in float32, and the
script refuses to write goldens where the two disagree.
"""

import math
import pathlib

import numpy as np
import torch
import trl

from trl_kto import make_completions, make_kto
from trl_pairs import make_jsd, make_pairs, make_preferences
from trl_samples import make_advantages, make_policies, make_samples
from trl_stand_ins import floats, lines

HERE = pathlib.Path(__file__).parent


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    pairs = make_pairs()
    make_preferences(pairs)
    make_jsd(pairs)
    samples = make_samples()
    make_policies(samples)
    make_advantages(samples)
    make_kto(make_completions())

    data = np.concatenate(floats).astype("<f4")
    assert all(math.isfinite(x) for block in floats for x in block)
    data.tofile(HERE / "trl_goldens.bin")
    (HERE / "trl_goldens.txt").write_text("\n".join(lines) + "\n")
    print(sum(not line.startswith("tensor") for line in lines), "cases,", data.nbytes, "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
