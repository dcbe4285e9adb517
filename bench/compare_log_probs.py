# Opens a checkpoint in transformers and compares its log-probabilities with what `retort eval
# --output` wrote.
#   python bench/compare_log_probs.py CHECKPOINT LOGPS.jsonl
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
AutoTokenizer.from_pretrained(sys.argv[1])
worst, count = 0.0, 0
for line in open(sys.argv[2]):
    row = json.loads(line)
    ids = torch.tensor([row["token_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1]
        logps = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    worst = max(worst, (logps - torch.tensor(row["logps"])).abs().max().item())
    count += len(row["logps"])
print(f"transformers agrees on {count} log-probabilities, largest difference {worst:.2e}")
sys.exit(worst > 1e-4)
