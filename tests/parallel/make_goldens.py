# Makes goldens.txt: torch.optim.AdamW for ten steps on fixed inputs, and transformers'
# learning-rate schedules.
# Run: python tests/parallel/make_goldens.py   (torch 2.11, transformers 5; writes beside this file)
# One line for each array: a name, then its values. float32 values are written with nine digits, so
# they read back exactly.
import pathlib

import torch
import transformers

SHAPES = {
    "embed.weight": (5, 3),
    "layer.q.weight": (4, 3),
    "layer.q.bias": (7,),
    "norm.weight": (1,),
}
STEPS = 10
ADAMW_RUNS = {
    # name: (betas, eps, weight_decay, suffixes without decay)
    "plain": ((0.9, 0.999), 1e-8, 0.0, ()),
    "decay": ((0.9, 0.95), 1e-6, 0.1, ()),
    "groups": ((0.9, 0.999), 1e-8, 0.1, (".bias", "norm.weight")),
}


def learning_rate(step):
    return 1e-2 * (1.0 + 0.25 * step)


def decay_groups(params, decay, suffixes):
    """Parameters whose names end with one of the suffixes are in a group of their own, without
    decay."""
    if not suffixes:
        return [{"params": list(params.values()), "weight_decay": decay}]
    with_decay = [p for name, p in params.items() if not name.endswith(suffixes)]
    without = [p for name, p in params.items() if name.endswith(suffixes)]
    return [
        {"params": with_decay, "weight_decay": decay},
        {"params": without, "weight_decay": 0.0},
    ]


def adamw_lines():
    torch.manual_seed(0)
    start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    grads = []
    for step in range(STEPS):
        scale = 10 ** (step % 3 - 1)
        grads.append({name: torch.randn(shape) * scale for name, shape in SHAPES.items()})
    for name in SHAPES:
        yield f"adamw/start/{name}", start[name]
        for step in range(STEPS):
            yield f"adamw/grad/{step}/{name}", grads[step][name]

    for run, (betas, eps, decay, suffixes) in ADAMW_RUNS.items():
        params = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
        groups = decay_groups(params, decay, suffixes)
        options = dict(lr=0.0, betas=betas, eps=eps, foreach=False, fused=False)
        optimizer = torch.optim.AdamW(groups, **options)
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            for name, p in params.items():
                p.grad = grads[step][name].clone()
            optimizer.step()
            if step in (0, STEPS - 1):
                for name, p in params.items():
                    yield f"adamw/{run}/{step}/{name}", p.detach()
        for name, p in params.items():
            yield f"adamw/{run}/exp_avg/{name}", optimizer.state[p]["exp_avg"]
            yield f"adamw/{run}/exp_avg_sq/{name}", optimizer.state[p]["exp_avg_sq"]


def rates(scheduler_of, peak, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = scheduler_of(optimizer)
    values = []
    for _ in range(steps):
        values.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return values


def schedule_lines():
    t = transformers
    for warmup, total in ((0, 10), (3, 17), (1, 1), (20, 10)):
        steps = total + 1
        tag = f"{warmup}/{total}"
        constant = lambda o: t.get_constant_schedule_with_warmup(o, warmup)
        yield f"lr/constant/{tag}", rates(constant, 3e-4, steps)
        linear = lambda o: t.get_linear_schedule_with_warmup(o, warmup, total)
        yield f"lr/linear/{tag}", rates(linear, 3e-4, steps)
        cosine = lambda o: t.get_cosine_schedule_with_warmup(o, warmup, total)
        yield f"lr/cosine/{tag}", rates(cosine, 3e-4, steps)

        # transformers scales the warm-up of min_lr schedules as the others:
        # step / max(1, warmup).
        if (warmup, total) != (1, 1) and warmup <= total:
            schedule = t.get_cosine_with_min_lr_schedule_with_warmup
            cosine_min = lambda o: schedule(o, warmup, total, min_lr=2e-5)
            yield f"lr/cosine_min/{tag}", rates(cosine_min, 3e-4, steps)
        if warmup < total:
            for cycles in (1, 3):
                get = t.get_cosine_with_hard_restarts_schedule_with_warmup
                restarts = lambda o: get(o, warmup, total, num_cycles=cycles)
                yield f"lr/restarts_{cycles}/{tag}", rates(restarts, 3e-4, steps)
            for power in (1.0, 2.0, 0.5):
                get = t.get_polynomial_decay_schedule_with_warmup
                polynomial = lambda o: get(o, warmup, total, lr_end=2e-5, power=power)
                yield f"lr/polynomial_{power:g}/{tag}", rates(polynomial, 3e-4, steps)

            # One step less: past the end the rate of transformers rises again.
            get = t.optimization.get_cosine_with_min_lr_schedule_with_warmup_lr_rate
            ahead = lambda o: get(o, warmup, total, min_lr=2e-5)
            yield f"lr/cosine_warmup_min/{tag}", rates(ahead, 3e-4, total)
        for timescale in (None, 5):
            root = lambda o: t.get_inverse_sqrt_schedule(o, warmup, timescale)
            yield f"lr/inverse_sqrt_{timescale or 0}/{tag}", rates(root, 3e-4, steps)

    # The last steps of each: some, all that the warm-up leaves, and with a rate that stays.
    for warmup, total, cooldown in ((0, 10, 4), (3, 17, 5), (3, 17, 14), (2, 9, 1)):
        for kind in ("linear", "cosine", "1-sqrt"):
            wsd = lambda o: t.get_wsd_schedule(
                o, warmup, cooldown, num_training_steps=total, decay_type=kind)
            yield f"lr/wsd/{kind}/{warmup}/{total}/{cooldown}", rates(wsd, 3e-4, total + 1)
    wsd_min = lambda o: t.get_wsd_schedule(
        o, 0, 4, num_training_steps=10, decay_type="1-sqrt", min_lr_ratio=0.25)
    yield "lr/wsd_min", rates(wsd_min, 3e-4, 11)


def main():
    lines = []
    for name, value in adamw_lines():
        lines.append(name + "".join(f" {x:.9g}" for x in value.flatten().tolist()))
    for name, values in schedule_lines():
        lines.append(name + "".join(f" {x:.17g}" for x in values))
    (pathlib.Path(__file__).parent / "goldens.txt").write_text("\n".join(lines) + "\n")


main()
