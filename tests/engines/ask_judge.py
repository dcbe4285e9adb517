"""What a user would write instead of a judge: a `command` reward that asks a server itself.

    python ask_judge.py URL
"""
import json
import re
import sys
import urllib.request

for line in sys.stdin:
    row = json.loads(line)
    text = f"Rate '{row['completion']}' after '{row['question']}'."
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 64,
    }
    request = urllib.request.Request(
        sys.argv[1] + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    choice = json.load(urllib.request.urlopen(request))["choices"][0]
    said = choice["message"]["content"]
    found = (list(re.finditer("([0-9]+)", said)) or [None])[-1]
    cut = choice["finish_reason"] != "stop"
    if found and cut and not re.search(r"[ \t\r\n]", said[found.end() :]):
        found = None
    score = float(found[1]) * 0.1 if found else None
    print(json.dumps({"id": row["id"], "score": score}), flush=True)
