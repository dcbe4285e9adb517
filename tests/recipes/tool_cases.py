"""The environment, the rows and the scripted turns of make_tool_goldens.py. It imports nothing of
TRL or Retort: both run this class, TRL's trainer by `environment_factory`, ours by retort_env.py.
"""

END = "<|im_end|>"
OTHER_END = "<|endoftext|>"
GENERATIONS = 4
MAX_TURNS = 3  # of the model
MAX_TOKENS = 180  # behind the prompt, and of a turn


class Counter:
    """A number that the model changes, and what may go wrong with it."""

    def reset(self, start=0, **row):
        self.total = start
        self.is_scored = True
        return f" It is at {start}."

    def add(self, amount: int) -> int:
        """
        Adds to the counter.

        Args:
            amount: How much.
        """
        self.total += amount
        return self.total

    async def add_later(self, amount: int) -> int:
        """
        Adds to the counter, but waits.

        Args:
            amount: How much.
        """
        self.total += amount
        return self.total

    def refuse(self, why: str) -> str:
        """
        Refuses.

        Args:
            why: The words.
        """
        raise ValueError(why)

    def report(self, words: int) -> str:
        """
        Says more than anybody reads.

        Args:
            words: How many.
        """
        return "word " * words

    def give_up(self) -> str:
        """Ends without a score."""
        self.is_scored = False
        return "There is no score."

    def get_reward(self):
        return self.total / 8 if self.is_scored else None


class OrderedCounter(Counter):
    """The same tools, all of one kind, so that TRL calls them in the order as written."""

    def add_later(self, amount: int) -> int:
        """
        Adds to the counter, but waits.

        Args:
            amount: How much.
        """
        self.total += amount
        return self.total


def call(name, arguments="{}"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def add(amount, name="add"):
    return call(name, f'{{"amount": {amount}}}')


class Spelled(str):
    """A text that the model says letter by letter, in other tokens than a tokenizer makes of it."""


# Longer than an episode may be.
LONG = "and so on " * 70
LONG_REPORT = call("report", '{"words": 200}')
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"amount": 6}\n</tool_call>'

ROWS = [
    {"prompt": [{"role": "user", "content": "Bring the counter to 8."}], "start": 2},
    {"prompt": [{"role": "user", "content": "Count on."}], "start": 0},
    {
        "prompt": [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": "Is it 5?"},
        ],
        "start": 5,
    },
]

# By row: GENERATIONS completions each, by name the model's turns, as many as it may have. What has
# no end token is cut.
AGREED = [
    {
        "good_call": [add(6) + END, "Done." + END],
        "two_calls": [
            "<think>\nSix are left.\n</think>\n\nI add twice." + add(4) + "\n" + add(2) + END,
            "It is 8." + END,
        ],
        "unknown_tool": [add(6, "subtract") + END, add(1) + END, "No." + END],
        "malformed_call": [add(6) + "\n" + BROKEN + END],
    },
    {
        "no_call": ["I would rather not." + OTHER_END],
        "max_turns": [add(1) + END, add(2) + END, add(4) + END],
        "dropped_answer": [add(3) + END, LONG_REPORT + END],
        "cut_at_once": [LONG],
    },
    {
        "cut_later": [add(2) + END, LONG],
        "spelled": [Spelled(add(-1)), Spelled("It is 4.")],
        "tool_raises": [call("refuse", '{"why": "No, \\"never\\"."}') + END, "A pity." + END],
        "wrong_argument": [
            call("add", '{"number": 1}') + END,
            add(3, "add_later") + END,
            "8" + END,
        ],
    },
]

DIFFERING = [
    {
        "half_a_turn": [add(6) + "\n" + call("add", "[6]") + END, "Done." + END],
        "cut_call": [add(6) + LONG],
        "mixed_kinds": [add(1, "add_later") + add(2) + END, "Mixed." + END],
        "good_call": [add(5) + END, "Done." + END],
    },
    {
        "other_end": [add(1) + OTHER_END, add(2) + END, "Three." + END],
        "max_turns": [add(1) + END, add(2) + END, add(4) + END],
        "dropped_answer": [add(3) + END, LONG_REPORT + END],
        "no_call": ["I would rather not." + END],
    },
    {
        "not_json": [call("refuse", '{"why": NaN}') + END, "A pity." + END],
        "two_calls": [add(1) + add(1) + END, "Seven." + END],
        "no_call": ["No." + END],
        "cut_later": [add(1) + END, LONG],
    },
]

NO_REWARD = [
    {str(i): ["No." + END] for i in range(GENERATIONS)},
    {str(i): ["No." + END] for i in range(GENERATIONS)},
    {str(i): ["No." + END] for i in range(GENERATIONS - 1)}
    | {"no_reward": [call("give_up") + END, "I give up." + END]},
]
NO_REWARD_WHY = "an episode without a reward is an error that names its row; TRL leaves it out"

# What is not as TRL has it, in which of the fields that the golden has of a completion, and why.
# "trained": how many tokens have a loss. Where rewards differ, so do all advantages of the group.
UNMASKED = "TRL looks at the last token, and takes what ends with an end token for ended"
REASONS = {
    "half_a_turn": (
        ["ids", "mask", "length", "trained", "reward"],
        "arguments that are no object make the whole turn text; transformers reads both calls, "
        "and TRL makes the first",
    ),
    "not_json": (
        ["ids", "mask", "length", "trained"],
        "a number that JSON has not makes the turn text; transformers reads it",
    ),
    "cut_call": (["reward"], "a turn that was cut is text; TRL makes the calls in it"),
    "mixed_kinds": (["ids"], "calls are made as written; TRL makes async ones last"),
    "other_end": (
        ["ids", "mask"],
        "what answers a turn begins with the template's end of a turn, if the turn has another; "
        "TRL leaves that out",
    ),
    "max_turns": (["trained", "truncated"], f"the last turn is not answered: cut; {UNMASKED}"),
    "dropped_answer": (["trained", "truncated"], f"the answer has no room: cut; {UNMASKED}"),
}
