"""Tools and environments as TRL's users write them, and dialogues with them. They import nothing of
Retort: make_env_goldens.py runs them with TRL's code, test_retort_env.py with python/retort_env.py.
"""
import asyncio
import enum
from typing import Any, Literal, Optional, Union


class Unit(enum.Enum):
    KELVIN = "K"
    CELSIUS = "C"


class Level(enum.Enum):
    LOW = 1
    NONE = None


class Counter:
    """An environment with a state, and every kind of method that is a tool, and that is none."""

    def __init__(self):
        self.total = None
        self.calls = []

    @property
    def broken(self):
        raise RuntimeError("properties are not looked at")

    def reset(self, start=0, **row):
        self.total = start
        self.calls = []
        print("reset() prints", row)
        return None if row.get("silent") else f"\nThe counter is at {start}."

    def add(self, amount: int, times: int = 1) -> int:
        """
        Adds to the counter.

        Args:
            amount: How much.
            times: How often.

        Returns:
            The new total.
        """
        print("add() prints")
        self.calls.append("add")
        self.total += amount * times
        return self.total

    async def later(self, amount: int) -> str:
        """
        Adds to the counter, a little later.

        Args:
            amount: How much.
        """
        await asyncio.sleep(0.01)
        self.total += amount
        return f"now {self.total}"

    def fail(self, why: str) -> str:
        """Raises.

        Args:
            why: The words.
        """
        raise KeyError(why)

    def nothing(self) -> None:
        """Returns nothing."""

    def history(self) -> list:
        """What was called."""
        return [{"type": "text", "text": ", ".join(self.calls)}]

    def half(self) -> float:
        """Half of it."""
        return self.total / 2

    @staticmethod
    def fixed() -> dict:
        """Always the same."""
        return {"a": 'it\'s "quoted"', "b": [1, None, True]}

    def _private(self):
        raise AssertionError

    def get_reward(self):
        return self.total / 10


class Judged(Counter):
    """Its reward is asynchronous, and there is none for 0."""

    async def get_reward(self):
        await asyncio.sleep(0)
        return float(self.total) if self.total else None


class Bare:
    """One without tools and reward, whose reset() takes the row as it is."""

    def reset(self, **row):
        return str(sorted(row))


ENVIRONMENTS = {"counter": Counter, "bare": Bare}


def upper(text: str) -> str:
    """
    Upper case.

    Args:
        text: The text.
    """
    return text.upper()


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


# Rows, and the calls of each turn.
DIALOGUES = [
    ({"start": 3}, [[call("add", amount=4)], [call("add", amount=-1, times=5)]]),
    ({"silent": True}, [[call("fail", why="no such key")], [call("half")]]),
    ({"start": 1}, [[call("nope"), call("add", amount=2), call("nothing")], [call("history")]]),
    ({"start": 5}, [[call("later", amount=2)], [call("later"), call("later", amount=1)]]),
    ({}, [[call("add", wrong=1)], [call("add")], [{"name": "add", "arguments": [1]}]]),
    ({"start": 2}, [[call("fixed"), call("upper", text="grüße\n\"x\""), call("upper")]]),
    ({}, [[call("reset")], [call("get_reward")], [call("_private"), call("broken")]]),
    ({}, []),
]

# Functions whose schemas are compared. Those of REFUSED have none.


def plain(x: int, y: float, name: str, flag: bool):
    """Four basic types.

    Args:
        x: An int.
        y: A float.
        name: A text.
        flag: A bool.
    """


def returns(x: int) -> float:
    """
    Has a return value.

    Args:
        x: The x.

    Returns:
        Its half,
        in two lines.

    Raises:
        ValueError: never
    """
    return x / 2


def multi(x: int, text: str = "a"):
    """The first line of a
    description in several lines.

    And a second paragraph.

    Args:
        x (`int`): A description
            that goes on: with a colon
            in three lines.

        text (`str`, *optional*, defaults to `"a"`): The text.
    """


def optional(a: Optional[int], b: int | None = None, c: Union[str, None] = None):
    """Optional ones.

    Args:
        a: One.
        b: Two.
        c: Three.
    """


def unions(a: int | str, b: Union[float, int, None], c: list[int] | str):
    """Unions.

    Args:
        a: One.
        b: Two.
        c: Three.
    """


def lists(a: list, b: list[int], c: list[list[str]], d: tuple[int, str], e: tuple):
    """Lists.

    Args:
        a: One.
        b: Two.
        c: Three.
        d: Four.
        e: Five.
    """


def dicts(a: dict, b: dict[str, int], c: dict[str, list[float]]):
    """Dicts.

    Args:
        a: One.
        b: Two.
        c: Three.
    """


def literals(a: Literal["x", "y"], b: Literal[1, "two", None] = 1, c: Literal[True] = True):
    """Literals.

    Args:
        a: One.
        b: Two.
        c: Three.
    """


def enums(unit: Unit, level: Level = Level.LOW):
    """Enums.

    Args:
        unit: The unit.
        level: The level.
    """


def choices(drink: str, size: str = "small"):
    """Choices.

    Args:
        drink: What to drink (choices: ["tea", " coffee "])
        size: How much (Choices: ["small", "large"])
    """


def anything(x: Any, y: Any = None) -> Any:
    """Anything.

    Args:
        x: One.
        y: Two.

    Returns: on the same line
    """


def no_arguments() -> str:
    """Nothing to give.

    Returns:
        A text.
    """


def one_line(x: int): "One line only.\n\nArgs:\n    x: The x."


def odd_return(x: int) -> Counter:
    """Returns what has no schema.

    Args:
        x: The x.

    Returns:
        A counter.
    """


def indented(x: int):
    """    Indented.

        Args:
            x:
                On the next line.
    """


def with_list(x: int, y: int):
    """With a list inside a description.

    Args:
        x: One of
            - first: that
            - second: this
        y: The other.
    """


def quoted(x: "int", y: "list[str] | None" = None) -> "dict[str, int]":
    """Annotations as texts.

    Args:
        x: One.
        y: Two.
    """


def keyword_only(x: int, *, y: str = "a", z: bool):
    """Keyword arguments.

    Args:
        x: One.
        y: Two.
        z: Three.
    """


def more_texts(x: int):
    """Describes what is not there.

    Args:
        x: One.
        y: Two.
    """


def nested(a: dict[str, list[int] | None], b: list[dict[str, str]], c: tuple[int, list[bool]]):
    """Nested types.

    Args:
        a: One.
        b: Two.
        c: Three.
    """


def unicode_text(größe: float, name: str = "ß"):
    """Größe — „Anführung“ 東京.

    Args:
        größe: Wie groß, in µm.
        name: Der Name.
    """


DESCRIBED = [
    plain, returns, multi, optional, unions, lists, dicts, literals, enums, choices, anything,
    no_arguments, one_line, odd_return, indented, with_list, quoted, keyword_only, more_texts,
    nested, unicode_text, upper, Counter().add, Counter().later, Counter.fixed, Counter().history,
]


def undocumented(x: int):
    pass


def not_described(x: int):
    """No arguments are described."""


def not_hinted(x):
    """No hint.

    Args:
        x: One.
    """


def custom(x: Counter):
    """A class of one's own.

    Args:
        x: One.
    """


def open_tuple(x: tuple[int, ...]):
    """Of any length.

    Args:
        x: One.
    """


REFUSED = [undocumented, not_described, not_hinted, custom, open_tuple]
