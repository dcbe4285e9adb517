"""An environment (docs/environments.md) that answers two turns of a model as a user would; the
third ends the episode. Its answers and its reward are functions of the episode's seed and of all
that the model said, so that an episode that is lost is the same when it begins anew."""
import json
import sys


def say(answer):
    print(json.dumps(answer), flush=True)


episodes = {}
say({"retort_environment": 1, "user_turns": True})
for line in sys.stdin:
    ask = json.loads(line)
    if "open" in ask:
        episodes[ask["open"]] = {"seed": ask["seed"], "said": 0, "turns": 0}
        word = {"role": "user", "content": f"w{ask['seed'] % 20}"}
        say({"open": ask["open"], "tools": [], "messages": [word]})
    elif "step" in ask:
        episode = episodes[ask["step"]]
        episode["turns"] += 1
        episode["said"] += sum(map(ord, ask["text"]))
        done = episode["turns"] == 3
        words = [] if done else [{"role": "user", "content": f"w7 w{episode['turns']}"}]
        say({"step": ask["step"], "messages": words, "done": done})
    elif "close" in ask:
        # An episode that it does not know was closed before its opening came.
        episode = episodes.pop(ask["close"], {"seed": 0, "said": 0})
        say({"close": ask["close"], "reward": (episode["seed"] + episode["said"]) % 7 / 7})
