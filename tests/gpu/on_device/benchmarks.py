"""The steps that take times: ceilings, kernels in development, sft_bench and losses."""

import gzip
import json
import re
import shutil
import sys

from package import PACKAGE, program
from processes import Child, run
from results import record
from traces import read_trace


def ceilings():
    query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm"
    rc, text = run(["nvidia-smi", query, "--format=csv,noheader"], 10)
    record("device", text.strip().splitlines()[-1] if rc == 0 and text.strip() else "no nvidia-smi")
    if Child.is_tiny:  # on the stand-in, which Python's torch does not know
        return True
    import torch

    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    record("versions", f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")

    def milliseconds(work, repeats=10):
        for _ in range(3):
            work()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats

    a = torch.empty(2**31, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    record("copy", round(2 * 2**31 / milliseconds(lambda: b.copy_(a)) / 1e6), "GB/s")
    del a, b
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(x)
    record(
        "product",
        round(2 * 8192**3 / milliseconds(lambda: torch.mm(x, y, out=out)) / 1e9),
        "TFLOP/s",
    )


def shape_of(line):
    return tuple(line[key] for key in ("threads", "share", "least", "blocks"))


def kernel_sweep():
    """Our kernels in the shapes of kernels/launch_shapes.cc and in others."""
    rc, text = run(program("kernels_bench", "--sweep", *Child.tiny("--tiny")), Child.left() - 2)
    best, used = {}, {}
    for line in text.splitlines():
        try:
            line = json.loads(line)
        except ValueError:
            continue  # what libraries say
        if "kernel" not in line:
            record("copy", round(line["copy_gb_s"]), "GB/s")
            continue
        name = line["kernel"]
        shape = "/".join(map(str, shape_of(line)))
        record(f"{name} {shape}", line["us"], "us", show=False, **line)
        if line["in_use"]:
            used[name] = line
        elif line["right"] and line["us"] < best.get(name, line)["us"] + 1e-9:
            best[name] = line
        if not line["right"]:
            record(f"{name} {shape} is wrong", "other results than those of the shape in use")
    for name, line in used.items():
        shown = f"{line['us']:.1f} us, {line['gb_s']:.0f} GB/s"
        other = best.get(name)
        if other and other["us"] < 0.98 * line["us"]:
            shape = "/".join(map(str, shape_of(other)))
            shown += f"; {other['us']:.1f} us by {shape}"
        record(name, shown)
    return rc == 0 and bool(used) and all(line["right"] for line in used.values())


def harnesses():
    return sorted((PACKAGE.parent / "gpu_try").glob("try_*.py"))


def kernels(path):
    rc, text = run(
        [sys.executable, path], Child.left() - 2, env={"OUT": str(Child.output)}, cwd=path.parent
    )
    record("exit code", rc, lines=len(text.splitlines()))
    return rc == 0


def sft_bench(shape, arguments, limit):
    trace = Child.output / f"trace-{shape.replace(' ', '_')}.json"
    profile = [] if Child.is_tiny else ["--profile", trace]  # the profiler knows CUDA alone
    rc, text = run(
        program(
            "sft_bench",
            "--device",
            "cuda",
            "--dtype",
            "bfloat16",
            *profile,
            *(TINY if Child.is_tiny else arguments),
        ),
        limit,
    )
    for name, unit, pattern in (
        ("tokens/s", "", r"(\d+) tokens/s"),
        ("step", "s", r"([\d.]+) s a step"),
        ("processor time", "s", r"([\d.]+) s of processor time"),
        ("MFU", "%", r"MFU.*= ([\d.]+) %"),
        ("MFU, causal by half", "%", r"half of that term: ([\d.]+) %"),
        ("peak", "MiB", r"peak memory of tensors ([\d.]+) MiB"),
        ("plan", "MiB", r"plan ([\d.]+) MiB"),
    ):
        found = re.search(pattern, text)
        if found:
            record(f"{shape}: {name}", float(found.group(1)), unit)
    if trace.exists():
        try:
            read_trace(trace, shape)
        finally:
            with open(trace, "rb") as source, gzip.open(f"{trace}.gz", "wb", 5) as target:
                shutil.copyfileobj(source, target)
            trace.unlink()
    return rc == 0 and bool(re.search(r"tokens/s", text))


TINY = (
    "--hidden 16 --inner 24 --layers 2 --heads 2 --kv_heads 1 --head_dim 8 --vocab 64"
    " --length 8 --sequences 2 --steps 1 --warmup 1"
).split()
SMALL = [
    *"--hidden 1024 --inner 3072 --layers 28 --heads 16".split(),
    *"--kv_heads 8 --head_dim 128 --vocab 151936".split(),
]


def sft():
    ok = sft_bench("1.1G", [], 55)
    ok &= sft_bench("0.6G", SMALL, 35)
    return ok & sft_bench("0.6G short", [*SMALL, "--length", "256", "--sequences", "32"], 35)


def losses():
    tokens = "--tokens 8 --vocab 64" if Child.is_tiny else "--tokens 4096 --vocab 128256"
    arguments = f"--device cuda --dtype bfloat16 {tokens}"
    width = 16 if Child.is_tiny else 4096
    widths = f"--width {width} --teacher_width {width}"
    rc, text = run(
        program("loss_memory_bench", *arguments.split(), *widths.split()), Child.left() - 2
    )
    number = r"\s+([\d.eE+naif-]+)"
    rows = re.findall(r"^(.{28})" + number * 6 + r"\s+\S+ \S+$", text, re.M)
    for name, mib, mib_book, mib_ratio, seconds, seconds_book, ratio in rows:
        ms, ms_book = 1e3 * float(seconds), 1e3 * float(seconds_book)
        shown = f"{ms:.1f} ms / {ms_book:.1f} = {ratio}; {mib} MiB / {mib_book} = {mib_ratio}"
        record(
            name.strip(),
            shown,
            ms=ms,
            textbook_ms=ms_book,
            mib=float(mib),
            textbook_mib=float(mib_book),
        )
    record("exit code", rc)
    return rc == 0 and bool(rows)
