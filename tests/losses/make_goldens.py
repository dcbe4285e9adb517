"""Reference values of the linear losses, computed by plain PyTorch autograd over whole [R, V]
matrices.

Run:  python tests/losses/make_goldens.py
(torch 2.11 and numpy; writes goldens.txt and goldens.bin beside itself)

goldens.txt, one record a line:
  tensor NAME OFFSET DIM...      float32 data at OFFSET (in floats) of goldens.bin
  case NAME key=value ...        its gradients are the tensors NAME.dh, NAME.dw and, with a bias,
                                 NAME.db
Everything is computed in float64 from the float32 inputs; `loss32` is the same expression in
float32, and the script refuses to write goldens where the two disagree.
"""

import math
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
floats, lines = [], []
offset = 0


def put(name, tensor):
    global offset
    data = tensor.detach().to(torch.float32).contiguous().numpy().ravel()
    lines.append(f"tensor {name} {offset} " + " ".join(str(d) for d in tensor.shape))
    floats.append(data)
    offset += data.size


def make_set(name, rows, vocab, width, teacher_vocab, teacher_width, common, bias, seed):
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float32)
    s = {
        "hidden": normal(rows, width),
        "weight": normal(vocab, width) * 2 / math.sqrt(width),
        "teacher_hidden": normal(rows, teacher_width),
        "teacher_weight": normal(teacher_vocab, teacher_width) * 2.5 / math.sqrt(teacher_width),
        "targets": torch.randint(0, vocab, (rows,), generator=g),
        "common": common,
    }
    if bias:
        s["bias"] = normal(vocab) * 0.5
        s["teacher_bias"] = normal(teacher_vocab) * 0.5
    for key, value in s.items():
        if isinstance(value, torch.Tensor):
            put(f"{name}.{key}", value)
    return s


def kl(a, b):
    """sum a (log a - log b) from log-probabilities; 0 where a is 0."""
    return torch.where(a > -math.inf, a.exp() * (a - b), torch.zeros_like(a)).sum(-1)


def divergence(loss, mix, lq, lp):
    if loss == "forward_kl" or (loss == "jsd" and mix == 0):
        return kl(lq, lp)
    if loss == "reverse_kl" or (loss == "jsd" and mix == 1):
        return kl(lp, lq)
    q, p = lq.exp(), lp.exp()
    if loss == "jsd":
        m = (mix * q + (1 - mix) * p).log()
        return mix * kl(lq, m) + (1 - mix) * kl(lp, m)
    if loss == "skewed_kl":
        return kl(lq, (mix * q + (1 - mix) * p).log())
    if loss == "skewed_reverse_kl":
        return kl(lp, ((1 - mix) * q + mix * p).log())
    assert loss == "tvd"
    return 0.5 * (q - p).abs().sum(-1)


def distill(s, dtype, loss, mix, k, tail, temperature, kd_ratio, squared):
    # Logits of both sides; the ids above the common ones are not compared.
    h = s["hidden"].detach().to(dtype, copy=True).requires_grad_()
    w = s["weight"].detach().to(dtype, copy=True).requires_grad_()
    b = s["bias"].detach().to(dtype, copy=True).requires_grad_() if "bias" in s else None
    z = h @ w.T + (b if b is not None else 0)
    zt = s["teacher_hidden"].to(dtype) @ s["teacher_weight"].to(dtype).T
    if "teacher_bias" in s:
        zt = zt + s["teacher_bias"].to(dtype)
    c = s["common"]
    lp = torch.log_softmax(z[:, :c] / temperature, -1)
    lq = torch.log_softmax(zt[:, :c] / temperature, -1)

    # The divergence over all ids, or over the teacher's k largest and what `tail` makes of the
    # rest.
    if k == 0:
        kd = divergence(loss, mix, lq, lp)
    else:
        top, ids = lq.topk(k, dim=-1)
        inside = torch.zeros_like(lq, dtype=torch.bool).scatter_(1, ids, True)
        own = lp.gather(1, ids)
        if tail == "bucket":
            rest = lambda x: x.masked_fill(inside, -math.inf).logsumexp(-1, keepdim=True)
            teacher, student = torch.cat([top, rest(lq)], 1), torch.cat([own, rest(lp)], 1)
            kd = divergence(loss, mix, teacher, student)
        elif tail == "renormalize":
            kd = kl(top - top.logsumexp(-1, keepdim=True), own)
        else:
            kd = kl(top, own)
    if squared:
        kd = kd * temperature**2

    # The sum of all rows, and its gradients.
    ce = torch.nn.functional.cross_entropy(z, s["targets"], reduction="none")
    total = ((1 - kd_ratio) * ce + kd_ratio * kd).sum()
    total.backward()
    sums = (total.detach(), kd.sum().detach(), ce.sum().detach())
    return (*sums, h.grad, w.grad, b.grad if b is not None else None)


def case(name, set_name, s, loss, mix, k, tail, temperature, kd_ratio, squared=False):
    args = (loss, mix, k, tail, temperature, kd_ratio, squared)
    total, kd, ce, dh, dw, db = distill(s, torch.float64, *args)
    total32, _, _, dh32, dw32, _ = distill(s, torch.float32, *args)
    assert abs(total32 - total) <= 5e-6 * max(1, abs(total)), (name, total32, total)
    assert (dh32 - dh).norm() <= 1e-5 * dh.norm() and (dw32 - dw).norm() <= 1e-5 * dw.norm(), name
    lines.append(
        f"case {name} set={set_name} common={s['common']} loss={loss} mix={mix} k={k} tail={tail} "
        f"temperature={temperature} kd_ratio={kd_ratio} squared={int(squared)} "
        f"loss_sum={total.item()!r} loss32={total32.item()!r} kd={kd.item()!r} ce={ce.item()!r}"
    )
    put(f"{name}.dh", dh)
    put(f"{name}.dw", dw)
    if db is not None:
        put(f"{name}.db", db)


LOSSES = [
    ("forward_kl", 0.0),
    ("reverse_kl", 0.0),
    ("jsd", 0.5),
    ("jsd", 0.2),
    ("jsd", 0.0),
    ("jsd", 1.0),
    ("skewed_kl", 0.1),
    ("skewed_kl", 0.6),
    ("skewed_reverse_kl", 0.1),
    ("skewed_reverse_kl", 0.6),
    ("tvd", 0.0),
]


def main():
    # a: equal vocabularies. b: both sides have ids above the common ones, biases. c: teacher
    # smaller. d: student smaller, longer rows.
    a = make_set("a", 13, 37, 10, 37, 7, 37, False, 1)
    b = make_set("b", 11, 37, 10, 45, 7, 33, True, 2)
    c = make_set("c", 5, 203, 6, 190, 9, 190, False, 3)
    d = make_set("d", 7, 67, 9, 131, 5, 67, True, 4)
    n = 0

    def add(set_name, s, *args, **kwargs):
        nonlocal n
        case(f"{set_name}{n}", set_name, s, *args, **kwargs)
        n += 1

    # Every loss, over all ids and over the largest.
    for loss, mix in LOSSES:
        for temperature, kd_ratio in [(1.0, 1.0), (2.0, 1.0), (1.0, 0.4), (0.7, 0.4)]:
            add("a", a, loss, mix, 0, "bucket", temperature, kd_ratio)
            add("a", a, loss, mix, 8, "bucket", temperature, kd_ratio)
        for k in (0, 5):
            add("b", b, loss, mix, k, "bucket", 1.5, 0.3)
            add("c", c, loss, mix, k, "bucket", 1.0, 1.0)
            add("d", d, loss, mix, 3 * k, "bucket", 3.0, 0.9, squared=True)

    # The other two treatments of what is outside the largest exist for the forward KL alone.
    for tail in ("renormalize", "drop"):
        for temperature, kd_ratio in [(1.0, 1.0), (2.0, 1.0), (1.0, 0.4), (0.7, 0.4)]:
            add("a", a, "forward_kl", 0.0, 8, tail, temperature, kd_ratio)
        add("a", a, "forward_kl", 0.0, 37, tail, 1.3, 0.5)
        add("b", b, "forward_kl", 0.0, 5, tail, 1.5, 0.3)
        add("c", c, "forward_kl", 0.0, 17, tail, 1.0, 1.0)
        add("d", d, "forward_kl", 0.0, 1, tail, 3.0, 0.9, squared=True)

    np.concatenate(floats).astype("<f4").tofile(HERE / "goldens.bin")
    (HERE / "goldens.txt").write_text("\n".join(lines) + "\n")
    print(n, "cases,", 4 * offset, "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
