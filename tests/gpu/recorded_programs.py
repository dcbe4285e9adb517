#!/usr/bin/env python3
"""Prints what a program of a package for GPUs printed, in the place of its tests/run:

    run NAME [ARGUMENT...]

The numbers are those of one run on a card; a test asks whether on_device reads them.
"""

import sys

OUTPUT = {
    "sft_bench": """Qwen3, 1.117 G parameters, bfloat16 on cuda:0, 1 x 2 x 4096 tokens a step
0.141 s a step (median of 10; 0.140 to 0.143), 58059 tokens/s
0.139 s of processor time a step (median; at least 0.138)
MFU = tokens/s * (6 P + 12 L heads head_dim T) / peak FLOP/s = 58059 * (6.7e+09 + 1.61e+09) / \
9.89e+14 = 48.8 %
  counting causal attention, half of that term: 44.1 %
peak memory of tensors 30757.0 MiB, plan 33833.0 MiB (-9.1 %)
""",
    "loss_memory_bench": "tokens 4096, vocab 128256, bfloat16 on cuda:0, 1 threads\n"
    + "".join(
        f"{name:28} {mib:9} {book:11} {mib / book:7.3f} {s:9} {s_book:11} {s / s_book:7.3f}"
        "   1e-06 2e-03\n"
        for name, mib, book, s, s_book in (
            ("forward_kl, hidden", 3038.0, 12024.0, 0.0356, 0.0384),
            ("cross-entropy", 3289.0, 6012.0, 0.0218, 0.0233),
        )
    ),
    "kernels_bench": """{"device": "cuda:0", "capability": 90, "copy_gb_s": 3008}
{"kernel": "adamw", "size": "268435456 parameters, bf16", "threads": 512, "share": 4096, \
"least": 0, "blocks": 0, "in_use": true, "us": 2690, "gb_s": 2997, "of_copy": 0.996, "right": true}
{"kernel": "adamw", "size": "268435456 parameters, bf16", "threads": 256, "share": 4096, \
"least": 0, "blocks": 0, "in_use": false, "us": 2765, "gb_s": 2916, "of_copy": 0.969, "right": true}
{"kernel": "adamw", "size": "268435456 parameters, bf16", "threads": 128, "share": 4096, \
"least": 0, "blocks": 0, "in_use": false, "us": 2000, "gb_s": 4032, "of_copy": 1.34, "right": false}
{"kernel": "divergence_rows", "size": "1024 x 151936, forward KL, bf16", "threads": 256, \
"share": 0, "least": 0, "blocks": 0, "in_use": true, "us": 940, "gb_s": 2979, "of_copy": 0.99, \
"right": true}
{"kernel": "divergence_rows", "size": "1024 x 151936, forward KL, bf16", "threads": 512, \
"share": 0, "least": 0, "blocks": 0, "in_use": false, "us": 900, "gb_s": 3111, "of_copy": 1.03, \
"right": true}
""",
    "gpu_small_test": """[ RUN      ] GpuSmall.Works
[       OK ] GpuSmall.Works (3 ms)
[ RUN      ] GpuSmall.NeedsTwo
[  SKIPPED ] GpuSmall.NeedsTwo (0 ms)
""",
}

if __name__ == "__main__":
    if sys.argv[1] not in OUTPUT:
        sys.exit(f"error: nothing is recorded of {sys.argv[1]}")
    print(OUTPUT[sys.argv[1]], end="")
