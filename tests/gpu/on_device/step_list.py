"""Which steps there are."""

import collections

from benchmarks import ceilings, harnesses, kernel_sweep, kernels, losses, sft
from gtests import gtest, memcheck, units
from whole_runs import one_run


class Step(collections.namedtuple("Step", "name function limit wish")):
    """`limit` and `wish` in seconds: how long it may take, and what it should find left."""

    def least(self):
        return min(self.wish, round(self.limit / 3))


def all_steps():
    """In the order of priority; those of an inner list run beside each other."""
    runs = [
        "grpo",
        "grpo_wide",
        "dpo",
        "distill",
        "reward_model",
        "sft_lora",
        "on_policy_distill",
        "rejection_sampling",
        "sft",
        "sft_mixed",
    ]
    return [
        [Step("ceilings", ceilings, 30, 12)],
        *(
            [Step("kernels." + p.stem.removeprefix("try_"), lambda p=p: kernels(p), 45, 10)]
            for p in harnesses()
        ),
        [Step("sft", sft, 125, 25)],
        [Step("losses", losses, 60, 10)],
        # A test of a hung collective takes about 9 s. Where the watch ends a process it takes 45:
        # start 5, timeout 5, its clock 1, exit_limit 30. The step: 45 s, and one such test.
        [Step("nccl.world", lambda: gtest("gpu_world_test", 45), 85, 30)],
        [Step("nccl.layouts", lambda: gtest("gpu_layouts_test", 30), 70, 25)],
        # Not timed, so that they can share the device.
        [
            Step("tests.units", units, 60, 20),
            Step("tests.runs", lambda: gtest("gpu_run_test", 60), 120, 40),
            Step("memcheck", memcheck, 60, 30),
        ],
        [Step("kernels.sweep", kernel_sweep, 60, 15)],
        *([Step("runs." + n, lambda n=n: one_run(n), 45, 25)] for n in runs),
    ]
