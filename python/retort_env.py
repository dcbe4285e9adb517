#!/usr/bin/env python3
"""python3 retort_env.py [MODULE:CLASS] [--tools MODULE[:NAME,...]] ...: tools for a role of Retort.

    roles: {tools: {environment: {command: [python3, retort_env.py, "my_env:Env"]}}}

runs what TRL's GRPOTrainer takes, unchanged (semantics of TRL 1.16):

- an environment: a class, or what makes instances, with reset(**row), whose public methods are
  tools, and which may have get_reward(); or a dict of such, chosen by the rows' "environment"
- --tools: functions, all public ones that a module defines, or those named, also by a list of them

A module is looked for in the current folder and where Python looks, or is a file, ./tools.py. An
instance serves one episode at a time, in a thread of its own, and is used again after a reset(),
which --seed-as NAME also gives the seed of the episode's group, by that name. What is printed goes
to stderr. docs/environments.md of Retort has the protocol. This file needs Python alone.
"""
import argparse
import concurrent.futures
import contextlib
import enum
import importlib
import inspect
import json
import math
import operator
import os
import re
import sys
import threading
import traceback
import typing

VERSION = 1  # of the protocol
MAX_LINE = 1 << 20
_SHOWN, _WORDS, _TRACE = 800, 600, 8000  # characters of an error, an exception, a traceback


class Refused(Exception):
    """What the user gave cannot be used; the message says why."""


def _told(error):
    """An exception's type, its words, and the line of the user's file that it came from."""
    theirs = traceback.extract_tb(error.__traceback__)
    while any(frame.filename == _told.__code__.co_filename for frame in theirs):
        del theirs[0]
    lines = [frame.lineno for frame in theirs if frame.filename == theirs[0].filename]
    place = f" ({os.path.basename(theirs[0].filename)}:{lines[-1]})" if theirs else ""
    return f"{type(error).__name__}: {str(error)[:_WORDS]}{place}"


def _is_misfit(error, function, arguments):
    """Whether the call itself was wrong: the function does not take these arguments."""
    try:
        inspect.signature(function).bind(**arguments)
        return False
    except (TypeError, ValueError) as misfit:  # the latter: Python knows no signature of it
        return isinstance(error, TypeError) and isinstance(misfit, TypeError)


# Schemas of tools, by the rules of transformers.utils.get_json_schema (5.24, Apache-2.0).
_DESCRIPTION = re.compile(r"^(.*?)[\n\s]*(Args:|Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(Returns:|Raises:|\Z)", re.DOTALL)
_RETURNS = re.compile(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(Raises:|\Z)", re.DOTALL)
# "name (type): text", which goes on until the next one that is not indented deeper.
_ARGUMENT = re.compile(
    r"(?:^|\n)([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*?)\s*"
    r"(?=\n(?!\1[ \t])[ \t]*\w+(?:[ \t]*\([^()\n]*\))?:|\Z)", re.DOTALL)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES = {**_SCALARS, list: "array", tuple: "array", dict: "object"}


def _names(names):
    return names[0] if len(names) == 1 else names


def _values_schema(values, what):
    if not values or any(type(value) not in _SCALARS for value in values):
        raise Refused(f"{what} has values that are no JSON scalars: {values}")
    return {"type": _names(list(dict.fromkeys(_SCALARS[type(v)] for v in values))), "enum": values}


def _union_schema(hints):
    parts = [_type_schema(hint) for hint in hints if hint is not type(None)]
    if len(parts) == 1:
        schema = parts[0]
    elif all(part.keys() == {"type"} and isinstance(part["type"], str) for part in parts):
        schema = {"type": _names(sorted({part["type"] for part in parts}))}
    else:
        schema = {"anyOf": parts}
    return {**schema, "nullable": True} if type(None) in hints else schema


def _type_schema(hint):
    """The JSON schema of a type hint. Refused for one that has none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return {}
    if origin is None and isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _values_schema([member.value for member in hint], hint.__name__)
    if not arguments and (origin or hint) in _TYPES:
        return {"type": _TYPES[origin or hint]}
    if origin in (typing.Union, type(int | str)):
        return _union_schema(arguments)
    if origin is typing.Literal:
        return _values_schema(list(arguments), "a Literal")
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is tuple and len(arguments) > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [_type_schema(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    raise Refused(f"{hint!r} has no JSON schema; expected basic types, Enum, Literal, list, tuple, "
                  "dict and unions of those")


def _parameters_schema(function):
    """Schemas of its parameters by name, the names without a default, the result's or None."""
    hints, empty = typing.get_type_hints(function), inspect.Parameter.empty
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters), None)
    if first in ("self", "cls") and parameters[first].annotation is empty:
        del parameters[first]
    for name, parameter in parameters.items():
        if parameter.annotation is empty:
            raise Refused(f"the argument '{name}' has no type hint")
    required = [name for name, parameter in parameters.items() if parameter.default is empty]
    returned = None
    with contextlib.suppress(KeyError, Refused):  # the model never writes it
        returned = _type_schema(hints.pop("return"))
    return {name: _type_schema(hint) for name, hint in hints.items()}, required, returned


def own_schema(function):
    """The schema that chat templates get of a tool, of its annotations and Google docstring."""
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise Refused("it has no docstring")
    block = _ARGUMENTS.search(doc)
    lines = [line for line in block[1].split("\n") if line.strip()] if block else []
    texts = {match[1]: re.sub(r"\s*\n+\s*", " ", match[2].strip())
             for match in _ARGUMENT.findall("\n".join(lines))}

    # Each parameter with what the docstring says of it.
    properties, required, returned = _parameters_schema(function)
    for name, schema in properties.items():
        if name not in texts:
            raise Refused(f"the docstring has no description of the argument '{name}'")
        choices = _CHOICES.search(texts[name])
        if choices:
            schema["enum"] = [v.strip() if type(v) is str else v for v in json.loads(choices[1])]
        schema["description"] = _CHOICES.sub("", texts[name]).strip()

    needed = {"required": required} if required else {}
    result = {"name": getattr(function, "__name__", "operation"),
              "description": _DESCRIPTION.search(doc)[1].strip(),
              "parameters": {"type": "object", "properties": properties, **needed}}
    if returned is not None:
        about = _RETURNS.search(doc)
        result["return"] = {**returned, **({"description": about[1].strip()} if about else {})}
    return {"type": "function", "function": result}


def schema_of(function):
    """transformers' own where it can be imported, so that nothing differs from what TRL shows."""
    read_schema = own_schema
    with contextlib.suppress(ImportError):
        from transformers.utils import get_json_schema as read_schema
    try:
        return read_schema(function)
    except Exception as error:
        raise Refused(f"{function.__qualname__}: {error}") from error


def load_module(name):
    """By its name, or of a file, which a name with a slash or .py is. Another module of the file's
    name, Python's own json, is never taken for it."""
    file = os.path.abspath(name) if "/" in name or name.endswith(".py") else None
    if file:
        folder, base = os.path.split(file)
        if not (base.endswith(".py") and os.path.isfile(file)):
            raise Refused(f"'{name}': there is no file '{base}' in {folder}; expected FILE.py, or "
                          "the name of a module, without a slash or .py")
        sys.path.insert(0, folder)
        name = base[: -len(".py")]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:  # what it imports may be what is missing
        raise Refused(f"cannot import '{name}' ({error}); modules are looked for in {os.getcwd()}, "
                      f"in PYTHONPATH, and in what is installed for {sys.executable}") from error
    found = getattr(module, "__file__", None) or "built into Python"
    if file and os.path.realpath(found) != os.path.realpath(file):
        raise Refused(f"'{name}' is another module too ({found}); give {file} another name")
    return module


def find_in(module, path):
    try:
        return operator.attrgetter(path)(module)
    except AttributeError as error:
        raise Refused(f"'{module.__name__}' has no '{path}'") from error


def load_tools(text):
    """The functions of `module`, or of `module:name,name`."""
    module_name, colon, names = text.partition(":")
    module = load_module(module_name)
    listed = [find_in(module, name.strip()) for name in names.split(",")] if colon else [
        value for name, value in vars(module).items() if not name.startswith("_")
        and inspect.isfunction(value) and value.__module__ == module.__name__]
    found = [one for value in listed
             for one in (value if isinstance(value, (list, tuple)) else [value])]
    wrong = [value for value in found if not inspect.isroutine(value)]
    if wrong or not found:
        raise Refused(f"'{text}': expected functions, found {wrong[0] if wrong else 'none'!r}")
    return found


def load_factories(text):
    """What makes instances of environments, by name; None is the name of a single one."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise Refused(f"'{text}' names no environment; expected MODULE:CLASS, my_env:Env")
    found = find_in(load_module(module_name), path)
    factories = found if isinstance(found, dict) else {None: found}
    for name, factory in factories.items():
        if not callable(factory):
            raise Refused(f"'{text}': {name or path} is {type(factory).__name__}; expected a class")
    return factories


class Caller:
    """Calls the user's functions for all seats, async ones in one loop with a thread of its own,
    and logs what tools raise: where only the model is told, a bug looks like a bad model."""

    def __init__(self):
        self._lock = threading.Lock()
        self._loop = None
        self._failures = {}  # (tool, type) -> how many

    def call(self, function, arguments):
        """What it gives, or what the awaitable that it gives brings."""
        result = function(**arguments)
        if not inspect.isawaitable(result):
            return result
        import asyncio  # takes long, and few tools are async

        async def wait():
            return await result
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def tell_failure(self, call, function, error):
        """The first of each tool and type, with its traceback, and at powers of ten how many they
        are. Mistakes of the model have a line, those with unknown tools one for all."""
        is_models = function is None or _is_misfit(error, function, call["arguments"])
        key = (function and call["name"], None if is_models else type(error).__name__)
        with self._lock:
            count = self._failures[key] = self._failures.get(key, 0) + 1
        if str(count).rstrip("0") != "1":
            return
        said = f"tool '{call['name']}' raised {_told(error)}, which the model is told"
        if is_models:
            said = f"the model's mistake: {' '.join(str(error).split())[:_WORDS]}"
        elif count == 1:
            print("".join(traceback.format_exception(error))[-_TRACE:], file=sys.stderr)
        _tell(f"{said} ({count} so far)")


class Seat:
    """An instance, or none, and the thread in which all that it does is done, in order."""

    def __init__(self, factory, functions, caller):
        self._factory = factory  # None once there is an instance, or where there is none
        self.functions = list(functions)  # all tools, once there is an instance
        self._caller = caller
        self._instance = None
        self._methods = {}  # as TRL finds them: functions of the class, by name
        self.submit = concurrent.futures.ThreadPoolExecutor(max_workers=1).submit

    def make_instance(self):
        """By the first task."""
        if self._factory is None:
            return
        self._instance = self._ask(
            self._factory, {}, "expected a class, or a function, that is called without arguments")
        self._methods = dict(inspect.getmembers(type(self._instance), inspect.isfunction))
        if "reset" not in self._methods:
            raise Refused(f"{type(self._instance).__name__} has no method reset()")
        self.functions += [getattr(self._instance, name) for name in self._methods
                           if name not in ("reset", "get_reward") and not name.startswith("_")]
        self._factory = None

    def _ask(self, function, arguments, expected):
        """What the user's own code gives. Where that raises, Refused says so; the log has all."""
        try:
            return self._caller.call(function, arguments)
        except BaseException as error:
            if _is_misfit(error, function, arguments):
                raise Refused(f"{str(error)[:_WORDS]}; {expected}") from error
            traceback.print_exc()
            name = getattr(function, "__qualname__", type(function).__name__)
            raise Refused(f"{name}() raised {_told(error)}") from error

    def reset(self, row):
        """What it says to the model, as a part of the answer."""
        self.make_instance()
        if self._instance is None:
            return {}
        reset, columns = self._instance.reset, ", ".join(row)
        said = self._ask(
            reset, row, f"it gets the row's columns by name ({columns}): name them, or take **row")
        if not (said is None or isinstance(said, str)):
            raise Refused(f"{reset.__qualname__}() returned {repr(said)[:_WORDS]}, a "
                          f"{type(said).__name__}; expected None or a text")
        return {} if said is None else {"append": said}

    def call(self, calls):
        """The answer: a message for each call, as TRL words them, and how many tell an error."""
        tools = {function.__name__: function for function in self.functions}
        messages, failed = [], 0
        for call in calls:
            name = call["name"]
            try:
                if name not in tools:
                    raise ValueError(f"Tool {name} not found.")
                result = self._caller.call(tools[name], call["arguments"])
            except Exception as error:
                failed += 1
                self._caller.tell_failure(call, tools.get(name), error)
                result = {"error": str(error)}
            content = result if isinstance(result, list) else str(result)
            messages.append({"role": "tool", "name": name, "content": content})
        return {"messages": messages, "failed_calls": failed, "done": False}

    def reward(self):
        """A finite number as a part of the answer, empty where the environment has none."""
        if "get_reward" not in self._methods:
            return {}
        ask = self._instance.get_reward
        value = self._ask(ask, {}, "it is called without arguments")
        if value is None:
            return {}
        with contextlib.suppress(Exception):  # float() of what is no number may raise anything
            if not isinstance(value, (str, bytes)) and math.isfinite(number := float(value)):
                return {"reward": number}
        raise Refused(f"{ask.__qualname__}() returned {repr(value)[:_WORDS]}, a "
                      f"{type(value).__name__}; expected a number or None, not inf or nan")


def to_line(answer):
    """Texts that are too long for a line are cut: no model has so many tokens to read them."""
    try:
        line = json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (TypeError, ValueError) as error:
        raise Refused(f"what came back is no JSON ({error}); texts and lists of JSON values are "
                      "shown to the model, images are not") from error
    if len(line) < MAX_LINE:
        return line + b"\n"
    texts = [m for m in answer.get("messages", []) if isinstance(m["content"], str)]
    longest = max(texts, key=lambda m: len(m["content"]), default={"content": ""})
    if len(longest["content"]) < 1000:
        raise Refused(f"the answer has {len(line) + 1} bytes; at most {MAX_LINE} can be told")
    longest["content"] = longest["content"][: len(longest["content"]) // 2]
    _tell(f"what '{longest['name']}' returned is cut at {len(longest['content'])} characters")
    return to_line(answer)


def _tell(what):
    print(f"retort_env: {what}", file=sys.stderr, flush=True)


class Server:
    """Answers the lines of one Retort. Its thread reads them; those of the seats answer."""

    def __init__(self, factories, functions, seed_name, answers):
        self._factories = factories  # {} or {None: ...}: one for every row
        caller = Caller()
        self._new_seat = lambda name: Seat(factories.get(name), functions, caller)
        self._seed_name = seed_name
        self._answers = answers
        self._lock = threading.Lock()
        self._free = {}  # environment's name -> seats
        self._schemas = {}  # environment's name -> what its tools are told to the model as
        self._episodes = {}  # number -> (environment's name, seat)

    def prepare(self):
        """Makes one instance of each, to see what its tools are. Refused with what is wrong."""
        for name in self._factories or [None]:
            seat = self._new_seat(name)
            seat.submit(seat.make_instance).result()
            self._schemas[name] = [schema_of(function) for function in seat.functions]
            self._free[name] = [seat]

    def write(self, answer):
        line = to_line(answer)
        with self._lock:
            self._answers.write(line)
            self._answers.flush()

    def take(self, request):
        """A request of the protocol."""
        if "open" in request:
            return self._open(request)
        verb = "step" if "step" in request else "close"
        number = request[verb]
        find = self._episodes.get if verb == "step" else self._episodes.pop
        with self._lock:
            name, seat = find(number, (None, None))
        if seat is None:
            return self.write({verb: number, "error": f"episode {number} is not open"})
        work = (seat.call, request["calls"]) if verb == "step" else (self._close, name, seat)
        return seat.submit(self._answer, verb, number, *work)

    def _open(self, request):
        number, row, name = request["open"], dict(request["row"]), None
        if self._factories and None not in self._factories:
            name = row.pop("environment", None)
            if name not in self._factories:
                return self.write({"open": number, "error": f"the row's environment is {name!r}; "
                                   f"expected one of {list(self._factories)}"})
        if self._seed_name:
            row[self._seed_name] = request["seed"]
        with self._lock:
            free = self._free[name]
            seat = free.pop() if free else self._new_seat(name)
            self._episodes[number] = (name, seat)

        return seat.submit(self._answer, "open", number,
                           lambda: {"tools": self._schemas[name], **seat.reset(row)})

    def _close(self, name, seat):
        reward = seat.reward()
        with self._lock:
            self._free[name].append(seat)
        return reward

    def _answer(self, verb, number, work, *arguments):
        """In a seat's thread. An error ends the episode, and the seat is not used again."""
        try:
            self.write({verb: number, **work(*arguments)})
        except BaseException as error:
            with self._lock:
                self._episodes.pop(number, None)
            if not isinstance(error, Refused):
                traceback.print_exc()
                error = _told(error)
            _tell(error)
            self.write({verb: number, "error": str(error)[:_SHOWN]})


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", nargs="?", metavar="MODULE:CLASS")
    parser.add_argument("--tools", action="append", default=[], metavar="MODULE[:NAME,...]")
    parser.add_argument("--seed-as", metavar="NAME")
    given = parser.parse_args(arguments)
    if not (given.environment or given.tools):
        parser.error("expected an environment, MODULE:CLASS, or --tools")

    # The tools, what they import and what they start read nothing instead of requests, and print to
    # stderr instead of between the answers.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    sys.path.insert(0, os.getcwd())
    functions = [tool for text in given.tools for tool in load_tools(text)]
    factories = load_factories(given.environment) if given.environment else {}
    server = Server(factories, functions, given.seed_as, answers)
    server.prepare()

    # The first line says which protocol is spoken; every other one is a request.
    hello = json.loads(requests.readline() or b"{}")
    if hello.get("retort_environment") != VERSION:
        raise Refused(f"the first line is {hello}; expected version {VERSION} of the protocol")
    server.write({"retort_environment": VERSION, "user_turns": False})
    for line in requests:
        server.take(json.loads(line))


if __name__ == "__main__":
    code = 0
    try:
        main(sys.argv[1:])
    except Refused as refused:
        _tell(refused)
        code = 2
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # tools that never end are left as they are
