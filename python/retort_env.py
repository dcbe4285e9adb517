#!/usr/bin/env python3
"""python3 retort_env.py [MODULE:CLASS] [--tools MODULE[:NAME,...]] ...: tools for a role of Retort.

    # recipe.yaml
    roles:
      tools: {environment: {command: [python3, retort_env.py, "my_env:Env"]}}

runs what TRL's GRPOTrainer takes, unchanged (semantics of TRL 1.16):

- an environment: a class, or what makes instances, with reset(**row), whose public methods are
  tools, and which may have get_reward(); or a dict of such, chosen by the rows' "environment"
- --tools: plain functions, all public ones that a module defines, or those that are named, also by
  a list of them

A module is looked for in the current folder and where Python looks, or is a file, tools.py. An
instance serves one episode at a time, in a thread of its own, and is used again after a reset(),
which with --seed-as NAME also gets the seed of the episode's group, by that name. What is printed
goes to stderr. The protocol is in docs/environments.md of Retort. This file needs Python alone.
"""
import argparse
import concurrent.futures
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
import types
import typing

VERSION = 1  # of the protocol
MAX_LINE = 1 << 20
_SHOWN = 800


class Refused(Exception):
    """What the user gave cannot be used; the message says why."""


# Schemas of tools, by the rules of transformers.utils.get_json_schema (5.24, Apache-2.0).

_DESCRIPTION = re.compile(r"^(.*?)[\n\s]*(Args:|Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(Returns:|Raises:|\Z)", re.DOTALL)
_RETURNS = re.compile(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(Raises:|\Z)", re.DOTALL)
# "name (type): text", which goes on until the next one that is not indented deeper.
_ARGUMENT = re.compile(
    r"(?:^|\n)([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*?)\s*"
    r"(?=\n(?!\1[ \t])[ \t]*\w+(?:[ \t]*\([^()\n]*\))?:|\Z)",
    re.DOTALL,
)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_CONTAINERS = {list: "array", tuple: "array", dict: "object"}


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
    if type(None) in hints:
        schema["nullable"] = True
    return schema


def _type_schema(hint):
    """The JSON schema of a type hint. Refused for one that has none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if hint is typing.Any:
            return {}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _values_schema([member.value for member in hint], hint.__name__)
        name = {**_SCALARS, **_CONTAINERS}.get(hint) if isinstance(hint, type) else None
        if name is None:
            raise Refused(f"{hint!r} has no JSON schema; expected basic types, Enum, Literal, "
                          "list, tuple, dict and unions of those")
        return {"type": name}
    if origin in (typing.Union, types.UnionType):
        return _union_schema(arguments)
    if origin is typing.Literal:
        return _values_schema(list(arguments), "a Literal")
    if origin in _CONTAINERS and not arguments:
        return {"type": _CONTAINERS[origin]}
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is tuple and len(arguments) > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [_type_schema(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    raise Refused(f"{hint!r} has no JSON schema")


def _parameters_schema(function):
    """The schemas of its parameters by name, the names that have no default, and that of what it
    returns (None: it says nothing that a schema can)."""
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
    if "return" in hints:
        try:
            returned = _type_schema(hints.pop("return"))
        except Refused:
            pass  # the model never writes it
    return {name: _type_schema(hint) for name, hint in hints.items()}, required, returned


def own_schema(function):
    """The schema that chat templates get of a tool, of its annotations and Google docstring."""
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise Refused("it has no docstring")
    block = _ARGUMENTS.search(doc)
    lines = [line for line in block[1].split("\n") if line.strip()] if block else []
    texts = {
        match[1]: re.sub(r"\s*\n+\s*", " ", match[2].strip())
        for match in _ARGUMENT.findall("\n".join(lines))
    }

    # Each parameter with what the docstring says of it.
    properties, required, returned = _parameters_schema(function)
    for name, schema in properties.items():
        if name not in texts:
            raise Refused(f"the docstring has no description of the argument '{name}'")
        text = texts[name]
        choices = _CHOICES.search(text)
        if choices:
            values = json.loads(choices[1])
            schema["enum"] = [v.strip() if isinstance(v, str) else v for v in values]
            text = text[: choices.start()].strip()
        schema["description"] = text

    parameters = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    result = {
        "name": getattr(function, "__name__", "operation"),
        "description": _DESCRIPTION.search(doc)[1].strip(),
        "parameters": parameters,
    }
    if returned is not None:
        about = _RETURNS.search(doc)
        if about:
            returned["description"] = about[1].strip()
        result["return"] = returned
    return {"type": "function", "function": result}


def schema_of(function):
    """transformers' own where it can be imported, so that nothing differs from what TRL shows."""
    try:
        from transformers.utils import get_json_schema as read_schema
    except ImportError:
        read_schema = own_schema
    try:
        return read_schema(function)
    except Exception as error:
        raise Refused(f"{function.__qualname__}: {error}") from error


def load_module(name):
    if name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(name))
        sys.path.insert(0, folder)
        name = file[: -len(".py")]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that this one imports may be what is missing.
        raise Refused(
            f"cannot import '{name}' ({error}); modules are looked for in {os.getcwd()}, in "
            f"PYTHONPATH, and in what is installed for {sys.executable}"
        ) from error


def find_in(module, path):
    try:
        return operator.attrgetter(path)(module)
    except AttributeError as error:
        raise Refused(f"'{module.__name__}' has no '{path}'") from error


def load_tools(text):
    """The functions of `module`, or of `module:name,name`."""
    module_name, colon, names = text.partition(":")
    module, found = load_module(module_name), []
    for name in names.split(",") if colon else ():
        value = find_in(module, name.strip())
        found += value if isinstance(value, (list, tuple)) else [value]
    for name, value in () if colon else vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        found += [value] if own and not name.startswith("_") else []
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


class Loop:
    """The event loop of all async methods, in a thread of its own."""

    def __init__(self):
        self._lock = threading.Lock()
        self._loop = None

    def finish(self, result):
        """What an awaitable brings; anything else as it is."""
        if not inspect.isawaitable(result):
            return result
        with self._lock:
            if self._loop is None:
                import asyncio  # takes long, and few tools are async

                self._asyncio = asyncio
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def wait():
            return await result

        return self._asyncio.run_coroutine_threadsafe(wait(), self._loop).result()


class Seat:
    """An instance, or none, and the thread in which all that it does is done, in order."""

    def __init__(self, factory, functions, loop):
        self._factory = factory  # None once there is an instance, or where there is none
        self._functions = list(functions)
        self._loop = loop
        self._instance = None
        self.submit = concurrent.futures.ThreadPoolExecutor(max_workers=1).submit

    def make_instance(self):
        """By the first task."""
        if self._factory is None:
            return
        self._instance = self._factory()
        methods = self._methods()
        if "reset" not in methods:
            raise Refused(f"{type(self._instance).__name__} has no method reset()")
        self._functions += [
            getattr(self._instance, name) for name in methods
            if name not in ("reset", "get_reward") and not name.startswith("_")
        ]
        self._factory = None

    def _methods(self):
        """As TRL finds them: functions of the class, by name."""
        return dict(inspect.getmembers(type(self._instance), predicate=inspect.isfunction))

    def schemas(self):
        return [schema_of(function) for function in self._functions]

    def reset(self, row):
        """What it says to the model, or None."""
        if self._instance is None:
            return None
        said = self._loop.finish(self._instance.reset(**row))
        if not (said is None or isinstance(said, str)):
            raise Refused(f"reset() returned {type(said).__name__}; expected None or a text")
        return said

    def call(self, calls):
        """A message for each call, as TRL words them, and how many of them tell an error."""
        tools = {function.__name__: function for function in self._functions}
        messages, failed = [], 0
        for call in calls:
            name = call["name"]
            try:
                if name not in tools:
                    raise ValueError(f"Tool {name} not found.")
                result = self._loop.finish(tools[name](**call["arguments"]))
            except Exception as error:
                failed += 1
                result = {"error": str(error)}
            content = result if isinstance(result, list) else str(result)
            messages.append({"role": "tool", "name": name, "content": content})
        return messages, failed

    def reward(self):
        """A finite number, or None where the environment gives none."""
        if "get_reward" not in self._methods():
            return None
        value = self._loop.finish(self._instance.get_reward())
        if value is not None and not math.isfinite(value := float(value)):
            raise Refused(f"get_reward() returned {value}, which is not finite")
        return value


def to_line(answer):
    """Texts that are too long for a line are cut: no model has so many tokens to read them."""
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Refused(f"what came back is no JSON ({error}); texts and lists of JSON values are "
                      "shown to the model, images are not") from error
    line = text.encode("utf-8", "replace") + b"\n"
    if len(line) <= MAX_LINE:
        return line
    texts = [m for m in answer.get("messages", []) if isinstance(m["content"], str)]
    longest = max(texts, key=lambda m: len(m["content"]), default={"content": ""})
    if len(longest["content"]) < 1000:
        raise Refused(f"the answer has {len(line)} bytes; at most {MAX_LINE} can be told")
    longest["content"] = longest["content"][: len(longest["content"]) // 2]
    _tell(f"what '{longest['name']}' returned is cut at {len(longest['content'])} characters")
    return to_line(answer)


def _tell(what):
    print(f"retort_env: {what}", file=sys.stderr, flush=True)


class Server:
    """Answers the lines of one Retort. Its thread reads them; those of the seats answer."""

    def __init__(self, factories, functions, seed_name, answers):
        self._factories = factories  # {} or {None: ...}: one for every row
        self._functions = functions
        self._seed_name = seed_name
        self._answers = answers
        self._loop = Loop()
        self._lock = threading.Lock()
        self._free = {}  # environment's name -> seats
        self._schemas = {}  # environment's name -> what its tools are told to the model as
        self._episodes = {}  # number -> (environment's name, seat)

    def prepare(self):
        """Makes one instance of each, to see what its tools are. Refused with what is wrong."""
        for name in self._factories or [None]:
            seat = self._new_seat(name)
            seat.submit(seat.make_instance).result()
            self._schemas[name] = seat.schemas()
            self._free[name] = [seat]

    def _new_seat(self, name):
        return Seat(self._factories.get(name), self._functions, self._loop)

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
        if verb == "step":
            return self._submit(seat, verb, number, lambda: self._step(seat, request))
        return self._submit(seat, verb, number, lambda: self._close(name, seat))

    def _open(self, request):
        number, row = request["open"], dict(request["row"])
        name = None
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

        def begin():
            seat.make_instance()
            said = seat.reset(row)
            return {"tools": self._schemas[name], **({} if said is None else {"append": said})}

        return self._submit(seat, "open", number, begin)

    @staticmethod
    def _step(seat, request):
        messages, failed = seat.call(request["calls"])
        return {"messages": messages, "failed_calls": failed, "done": False}

    def _close(self, name, seat):
        reward = seat.reward()
        with self._lock:
            self._free[name].append(seat)
        return {} if reward is None else {"reward": reward}

    def _submit(self, seat, verb, number, work):
        """Has a seat answer. An error ends the episode, and the seat is not used again."""

        def task():
            try:
                self.write({verb: number, **work()})
            except BaseException as error:
                traceback.print_exc()
                with self._lock:
                    self._episodes.pop(number, None)
                kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
                self.write({verb: number, "error": f"{kind}{error}"[:_SHOWN]})

        seat.submit(task)


def take_streams():
    """The protocol's own streams. The tools, what they import and what they start read nothing
    instead of requests, and print to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return requests, answers


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", nargs="?", metavar="MODULE:CLASS")
    parser.add_argument("--tools", action="append", default=[], metavar="MODULE[:NAME,...]")
    parser.add_argument("--seed-as", metavar="NAME")
    given = parser.parse_args(arguments)
    if not (given.environment or given.tools):
        parser.error("expected an environment, MODULE:CLASS, or --tools")

    requests, answers = take_streams()
    sys.path.insert(0, os.getcwd())
    try:
        functions = [tool for text in given.tools for tool in load_tools(text)]
        factories = load_factories(given.environment) if given.environment else {}
        server = Server(factories, functions, given.seed_as, answers)
        server.prepare()
    except Refused as error:
        _tell(error)
        return 2

    # The first line says which protocol is spoken; every other one is a request.
    hello = json.loads(requests.readline() or b"{}")
    if hello.get("retort_environment") != VERSION:
        _tell(f"the first line is {hello}; expected version {VERSION} of the protocol")
        return 2
    server.write({"retort_environment": VERSION, "user_turns": False})
    for line in requests:
        server.take(json.loads(line))
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # tools that never end are left as they are
