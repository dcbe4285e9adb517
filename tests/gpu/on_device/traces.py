"""A trace of torch's profiler: a step's device time by category."""

import collections
import json
import re

from results import record

# The first that fits a kernel's name.
CATEGORIES = [
    ("attention", r"flash|fmha|attention|sdpa"),
    ("products to fp32", r"nvjet_[a-z]*s_|gemm\w*_f32f32_|gemm\w*_f32_f32_f32|gemm\w*bf16_f32_f32"),
    ("products", r"nvjet|gemm|gemv|cutlass|xmma|splitK|cublas"),
    ("AdamW", r"[Aa]dam"),
    ("gradient norm", r"LpNorm|NormTwo|NormOps"),
    ("norms", r"(?i)rms_?norm|layer_?norm|GammaBeta|RowwiseMoments|cuComputeGrad|cuComputePart"),
    ("copies", r"(?i)memcpy|memset|copy_kernel|copy_device|CatArray|FillFunctor"),
    (
        "element by element",
        r"(?i)elementwise|reduce_kernel|softmax|index|scatter|gather|multi_tensor|embedding|sort|"
        r"scan",
    ),
]


def category_of(name):
    if name.startswith("retort_"):  # kernels of our own, each by itself
        return re.match(r"\w+", name).group()
    return next((c for c, pattern in CATEGORIES if re.search(pattern, name)), "other")


def read_trace(path, shape):
    """Device time by category, idle time, launches and the longest kernels of a traced step."""
    events = json.loads(path.read_text(errors="replace"))
    events = events["traceEvents"] if isinstance(events, dict) else events
    on_device = [
        e
        for e in events
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    if not on_device:
        raise ValueError(f"{path}: nothing of a device in the trace")
    sums, names = collections.Counter(), collections.Counter()
    calls = collections.Counter(e["name"] for e in on_device)
    for e in on_device:
        kind = "copies" if e["cat"] != "kernel" else category_of(e["name"])
        sums[kind] += e["dur"]
        names[e["name"]] += e["dur"]
    busy = end = 0.0
    for start, stop in sorted((float(e["ts"]), float(e["ts"]) + e["dur"]) for e in on_device):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    span = end - min(float(e["ts"]) for e in on_device)
    for kind, us in sums.most_common():
        record(f"{shape}: {kind}", round(us / 1e3, 2), "ms")
    record(f"{shape}: device span", round(span / 1e3, 2), "ms")
    record(f"{shape}: device idle", round((span - busy) / 1e3, 2), "ms")
    record(f"{shape}: kernels", sum(e["cat"] == "kernel" for e in on_device))
    record(
        f"{shape}: copies and fills by calls",
        sum(e["cat"] != "kernel" for e in on_device),
        show=False,
    )
    runtime = collections.Counter(
        e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
    )
    record(f"{shape}: calls of CUDA", dict(runtime.most_common(12)), show=False)
    for name, us in names.most_common(25):
        record(
            f"{shape}: {name[:150]}",
            round(us / 1e3, 3),
            "ms",
            show=False,
            calls=calls[name],
            category=category_of(name),
        )
