"""Commands of the program that a script or a notebook starts: launch, cache and eval."""
import json
import os
import subprocess
import sys
import threading

from retort.program import environment, program
from retort.run import open_run

_KEPT_CHARACTERS = 100_000  # of a stream: what errors show, and where results stand
# For what the program's own children still print once it has ended.
_LAST_WORDS_SECONDS = 5


class CommandError(Exception):
    """A command that did not end with exit code 0.

    exit_code: what docs/cli.md says of it; negative: the signal that ended the program
    message: what the program wrote to stderr, or the last line of its stdout if that is nothing
    """

    def __init__(self, command, exit_code, message):
        super().__init__(command, exit_code, message)
        self.command = command
        self.exit_code = exit_code
        self.message = message

    def __str__(self):
        how = f"exit code {self.exit_code}"
        if self.exit_code < 0:
            how = f"signal {-self.exit_code}"
        return f"retort {self.command} ended with {how}: {self.message or 'it said nothing'}"


def launch(recipe, overrides=None, *, resume=False, overwrite=False, quiet=False):
    """Trains as a recipe says, and returns the run when it is done.

    overrides: values of the recipe by their path: {"train.max_steps": 10, "roles.reference": None};
        None removes a key with all below it
    resume: goes on from the newest checkpoint; overwrite: deletes what is in output_dir first
    quiet: the progress is not shown
    Raises CommandError if the run does not come to its end; with exit code 4 it was stopped and
    saved, and `resume=True` goes on. So it is after Ctrl-C (KeyboardInterrupt).
    """
    flags = ["--resume"] * resume + ["--overwrite"] * overwrite
    output = _start(["launch", os.fspath(recipe), *flags, *_assignments(overrides)], quiet)
    for line in reversed(output.splitlines()):
        if line.startswith("done: "):
            return open_run(os.path.dirname(line.removeprefix("done: ")))
    raise RuntimeError(
        f"retort launch {recipe} trained nothing here; what it printed:\n{output}\n"
        "With launch.backend: slurm or kubernetes the run is another command's"
    )


def cache(recipe, output, overrides=None, *, quiet=False):
    """Keeps what the teacher of a distillation says in the folder `output`, and returns it as a
    run. The same call goes on with a cache that is not complete."""
    arguments = ["--output", os.fspath(output), *_assignments(overrides)]
    _start(["cache", os.fspath(recipe), *arguments], quiet)
    return open_run(output)


def eval(model, data, **options):
    """Loss and accuracy of a checkpoint on a data file, as a dict.

    options: those of `retort eval`: exact_match=True, max_length=512, output="logps.jsonl",
        columns={"prompt": "question"}
    """
    arguments = ["--model", os.fspath(model), "--data", os.fspath(data)]
    for name, value in options.items():
        if value is None or value is False:
            continue
        arguments.append("--" + name.replace("_", "-"))
        if isinstance(value, dict):
            arguments += [f"{key}={column}" for key, column in value.items()]
        elif value is not True:
            arguments.append(str(value))
    return json.loads(_start(["eval", *arguments], quiet=True).splitlines()[-1])


def _assignments(overrides):
    """key.path=value for each; JSON is YAML, and a text in quotes is never taken for a number."""
    return [f"{key}={_yaml(value)}" for key, value in (overrides or {}).items()]


def _yaml(value):
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value):
    """What JSON does not know: paths, and numbers of numpy and the like."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


class _Stream(threading.Thread):
    """Keeps the end of a stream of the program, and shows its lines as they come."""

    def __init__(self, stream, show):
        super().__init__(daemon=True)
        self._stream = stream
        self._show = show
        self.text = ""
        self.start()

    def run(self):
        with self._stream:
            for line in self._stream:
                self.text = (self.text + line)[-_KEPT_CHARACTERS:]
                if self._show:
                    self._show.write(line)
                    self._show.flush()


def _start(arguments, quiet):
    """What the command wrote to stdout; CommandError if it did not end with 0."""
    process = subprocess.Popen(
        [program(), *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    try:
        output = _Stream(process.stdout, None if quiet else sys.stdout)
        errors = _Stream(process.stderr, None if quiet else sys.stderr)
        process.wait()
    except KeyboardInterrupt:
        _wait_until_saved(process)
        raise

    for stream in (output, errors):
        stream.join(_LAST_WORDS_SECONDS)
    if process.returncode != 0:
        message = errors.text.strip() or "".join(output.text.splitlines()[-1:])
        raise CommandError(arguments[0], process.returncode, message)
    return output.text


def _wait_until_saved(process):
    """Ctrl-C reaches the program as well, and it saves before it ends; a second one ends it now."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
