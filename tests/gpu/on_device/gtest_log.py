"""What gtest prints, test by test."""

import re
import time

from results import record


class TestLog:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []
        self.current, self.since, self.text = None, 0.0, []
        self.memory_errors = None  # by memcheck's own count

    def line(self, line):
        summary = re.search(r"ERROR SUMMARY: (\d+) error", line)
        if summary:
            self.memory_errors = (self.memory_errors or 0) + int(summary.group(1))
        if self.current:
            self.text.append(line)
        begin = re.match(r"\[ RUN      \] (\S+)", line)
        end = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)", line)
        if begin:
            self.current, self.since, self.text = begin.group(1), time.monotonic(), []
        elif end and end.group(2) == self.current:
            {"OK": self.passed, "FAILED": self.failed, "SKIPPED": self.skipped}[
                end.group(1)
            ].append(self.current)
            if end.group(1) == "FAILED":
                self.tell("failed")
            self.current = None

    def tell(self, how):
        text = "\n".join(self.text)
        record(
            f"{self.current}",
            how,
            show=False,
            seconds=round(time.monotonic() - self.since, 1),
            output=text[:1500] + (" [...] " + text[-2500:] if len(text) > 4000 else text[1500:]),
        )

    def broken_off(self, why):
        self.failed.append(self.current)
        self.tell(why)
        self.current = None

    def done(self):
        return [*self.passed, *self.failed, *self.skipped]
