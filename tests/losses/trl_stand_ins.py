"""What make_trl_goldens.py and its parts share: the goldens so far, and stand-ins for what TRL's
trainers are given by their constructors."""

import types
from collections import defaultdict

import torch

VOCAB, WIDTH, PAD, EOS = 11, 5, 0, 1
floats, lines = [], []


def put(name, tensor):
    data = tensor.detach().to(torch.float32).contiguous().numpy().ravel()
    offset = sum(block.size for block in floats)
    lines.append(f"tensor {name} {offset} " + " ".join(str(d) for d in tensor.shape))
    floats.append(data)


def record(kind, name, values):
    lines.append(f"{kind} {name} " + " ".join(f"{key}={value}" for key, value in values.items()))


class Head(torch.nn.Module):
    """Logits of given hidden states, whatever the tokens are."""

    is_gradient_checkpointing = False

    def __init__(self, hidden, weight):
        super().__init__()
        self.hidden, self.weight = hidden, weight

    def forward(self, input_ids=None, **kwargs):
        assert input_ids.shape == self.hidden.shape[:2]
        return types.SimpleNamespace(logits=self.hidden @ self.weight.T)


class OneProcess:
    """What the trainers ask of accelerate."""

    device, num_processes, process_index, is_main_process = torch.device("cpu"), 1, 0, True
    gather = gather_for_metrics = staticmethod(lambda tensor: tensor)


def bare(trainer_class, **attributes):
    """A trainer without its constructor, with the attributes that its loss methods read."""
    trainer = trainer_class.__new__(trainer_class)
    trainer.accelerator = OneProcess()
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    for key, value in attributes.items():
        setattr(trainer, key, value)
    return trainer


def leaf(tensor, dtype):
    return tensor.detach().to(dtype, copy=True).requires_grad_()


def in_both_precisions(name, run):
    """run(dtype) -> (loss, hidden, weight, values): its gradients in float64, checked against
    float32."""
    results = []
    for dtype in (torch.float64, torch.float32):
        loss, hidden, weight, values = run(dtype)
        loss.backward()
        results.append((loss.item(), hidden.grad, weight.grad, values))
    (loss, dh, dw, values), (loss32, dh32, dw32, _) = results
    assert abs(loss32 - loss) <= 5e-6 * max(abs(loss), 0.1), (name, loss32, loss)
    assert (dh32 - dh).norm() <= 1e-5 * dh.norm() and (dw32 - dw).norm() <= 1e-5 * dw.norm(), name
    put(f"{name}.dh", dh)
    put(f"{name}.dw", dw)
    return {**values, "loss": repr(loss), "loss32": repr(loss32)}
