"""Runs of Retort from Python: start them, read what they wrote. See docs/python.md.

    import retort

    run = retort.launch("recipe.yaml", {"train.max_steps": 200})
    run.metrics()                           # a pandas DataFrame: step, loss, ...
    retort.eval(run.final, "test.jsonl")    # {"loss": ..., "perplexity": ...}

`python -m retort.reward` makes a reward of a function, `python -m retort.symbolic` compares
formulas, `python -m retort.track` feeds wandb and MLflow.
"""
from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from retort.commands import CommandError, cache, eval, launch
    from retort.program import recipes_folder
    from retort.rows import DamagedFileError
    from retort.run import Run, open_run

# Imported when they are asked for: the command `retort` of a wheel passes here too, and needs none.
_MODULES = {
    "CommandError": "commands",
    "DamagedFileError": "rows",
    "Run": "run",
    "cache": "commands",
    "eval": "commands",
    "launch": "commands",
    "open_run": "run",
    "recipes_folder": "program",
}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module 'retort' has no attribute '{name}'")
    value = getattr(import_module(f"retort.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_MODULES])
