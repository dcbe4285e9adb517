"""What the comparisons with TRL's trainers share: the settings of a trainer on the CPU in fp32, and
the clock of its steps. Needs trl and transformers."""

import time

from transformers import TrainerCallback

SETTINGS = dict(
    use_cpu=True,
    bf16=False,
    fp16=False,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    temperature=1.0,
    save_strategy="no",
    report_to=[],
    gradient_checkpointing=False,
    dataloader_num_workers=0,
)
GRPO_SETTINGS = SETTINGS | dict(loss_type="dapo", beta=0.0, shuffle_dataset=False, logging_steps=1)


class Clock(TrainerCallback):
    """`times`: seconds of each step; `logs`: the rows that the trainer logs."""

    def __init__(self):
        self.times, self.logs = [], []

    def on_step_begin(self, *_, **__):
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter() - self.start)

    def on_log(self, _args, _state, _control, logs=None, **__):
        self.logs.append(logs)
