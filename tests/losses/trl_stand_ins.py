"""What make_trl_goldens.py and its parts share: the goldens so far, and stand-ins for what TRL's
trainers are given by their constructors."""

import contextlib
import types
from collections import defaultdict

import torch
from trl.trainer.utils import add_fused_lm_head

VOCAB, WIDTH, PAD, EOS = 11, 5, 0, 1
floats, lines = [], []


def put(name, tensor):
    data = tensor.detach().to(torch.float32).contiguous().numpy().ravel()
    offset = sum(block.size for block in floats)
    lines.append(f"tensor {name} {offset} " + " ".join(str(d) for d in tensor.shape))
    floats.append(data)


def record(kind, name, values):
    lines.append(f"{kind} {name} " + " ".join(f"{key}={value}" for key, value in values.items()))


def fused_output(logits, labels):
    """What a model says to fused_lm_head=True, as TRL's FusedCausalLMOutput describes it. TRL's own
    add_fused_lm_head is in float32 whatever the hidden states are."""
    logits, labels = logits[:, :-1], labels[:, 1:]
    counted = labels != -100
    at_labels = lambda of_tokens: torch.where(counted, of_tokens, torch.zeros_like(of_tokens))
    logps = torch.log_softmax(logits, -1)
    picked = logps.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return types.SimpleNamespace(
        log_probs=at_labels(picked),
        entropy=at_labels(-(logps.exp() * logps).sum(-1)),
        mean_logits=at_labels(logits.detach().mean(-1)),
        is_top1=counted & (logits.argmax(-1) == labels),
    )


def with_fused_head(model, temperature=1.0):
    """The model, with the head that TRL's trainers give theirs."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
    add_fused_lm_head(base, temperature=temperature, outputs=outputs)
    return model


class Head(torch.nn.Module):
    """Logits of given hidden states, whatever the tokens are."""

    is_gradient_checkpointing = False

    def __init__(self, hidden, weight, temperature=1.0):
        super().__init__()
        self.hidden, self.weight, self.temperature = hidden, weight, temperature

    def hidden_of(self, input_ids):
        assert input_ids.shape == self.hidden.shape[:2]
        return self.hidden

    def forward(self, input_ids=None, labels=None, fused_lm_head=False, **kwargs):
        logits = self.hidden_of(input_ids) @ self.weight.T / self.temperature
        if fused_lm_head:
            return fused_output(logits, labels)
        return types.SimpleNamespace(logits=logits)


class OneProcess:
    """What the trainers ask of accelerate."""

    device, num_processes, process_index, is_main_process = torch.device("cpu"), 1, 0, True
    autocast = staticmethod(contextlib.nullcontext)
    gather = gather_for_metrics = staticmethod(lambda tensor: tensor)
    reduce = staticmethod(lambda tensor, reduction: tensor)


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
