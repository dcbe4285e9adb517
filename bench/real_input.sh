#!/usr/bin/env bash
# A real data set end to end: bench/real_input.sh train.jsonl [steps]
# (rows with question/answer, such as GSM8K)
# Trains a tokenizer, a ~10M-parameter teacher by sft and a ~3M-parameter student by distill with
# each payload; prints first and last loss. With RETORT_PYTHON (torch, transformers) it also opens
# the checkpoint there and compares log-probabilities.
set -euo pipefail
data=$(realpath "$1") steps=${2:-40}
retort=$(realpath "${RETORT_BIN:-build/bin/retort}")
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# losses RUN: first and last loss
losses() {
  sed -n 's/.*"loss": \([0-9.e+-]*\), "learning_rate".*/\1/p' "$1/metrics.jsonl" |
    sed -n '1p;$p' | tr '\n' ' '
}

"$retort" tokenizer train --data "$data" --vocab-size 8192 --output tokenizer
"$retort" model init --arch qwen2 --tokenizer tokenizer --output teacher --seed 1 \
  --hidden-size 320 --num-hidden-layers 6 --num-attention-heads 8 --intermediate-size 896
"$retort" model init --arch qwen3 --tokenizer tokenizer --output student --seed 2 \
  --hidden-size 160 --num-hidden-layers 4 --num-attention-heads 4 --head-dim 40 \
  --intermediate-size 576

columns='{prompt: question, completion: answer}'
common="data: {train: [{path: $data, columns: $columns}], max_length: 512}
train:
  max_steps: $steps
  per_device_train_batch_size: 3
  learning_rate: 1.0e-3
  warmup_ratio: 0.1
  save_steps: 0"
cat >sft.yaml <<YAML
recipe: sft
output_dir: sft
roles: {student: {model: teacher, world: {threads: 2}}}
$common
YAML
"$retort" launch sft.yaml >sft.log || { cat sft.log; exit 1; }
echo "teacher sft             loss $(losses sft)"

for payload in hidden_states topk full; do
  cat >"$payload.yaml" <<YAML
recipe: distill
output_dir: $payload
roles: {student: {model: student}, teacher: {model: sft/final}}
$common
distill: {teachers: [{role: teacher}], payload: $payload}
YAML
  "$retort" launch "$payload.yaml" >"$payload.log" || { cat "$payload.log"; exit 1; }
  printf 'student %-15s loss %s\n' "$payload" "$(losses "$payload")"
done

head -n 8 "$data" >few.jsonl
"$retort" eval --model hidden_states/final --data few.jsonl --output logps.jsonl \
  --columns prompt=question completion=answer --dtype float32
if [[ -n ${RETORT_PYTHON:-} ]]; then
  "$RETORT_PYTHON" "$here/compare_log_probs.py" hidden_states/final logps.jsonl
fi
