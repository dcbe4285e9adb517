#!/usr/bin/env bash
# The demo: generate data, train a tokenizer and a teacher, distil it into a student of a quarter of
# its parameters in separate processes, train the same student by SFT alone, evaluate all three on
# held-out problems. `./dev demo` builds and runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
retort=${RETORT_BIN:-build/bin/retort}
out=runs/demo
configs=recipes/configs

bold= plain=
if [[ -t 1 ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
# number FILE KEY: a number of a one-line JSON object
number() { sed -n "s/.*\"$2\": \([-0-9.e+]*\).*/\1/p" "$1"; }
# timed NAME COMMAND...: runs it and notes the wall time
timed() {
  local name=$1 start=$SECONDS
  shift
  "$@"
  echo $((SECONDS - start)) >"$out/$name.seconds"
}

rm -rf "$out"
mkdir -p "$out"
say "data: arithmetic word problems (the test problems never appear in training)"
"$retort" data arithmetic --output $out/train.jsonl --first 0 --count 12000 --seed 1
"$retort" data arithmetic --output $out/test.jsonl --first 12000 --count 400 --seed 1
head -n 2 $out/test.jsonl

say "tokenizer and random checkpoints"
"$retort" tokenizer train --data $out/train.jsonl --vocab-size 400 --output $out/tokenizer
"$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output $out/teacher-init --seed 1 \
  --hidden-size 192 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4 \
  --intermediate-size 512
"$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output $out/student-init --seed 2 \
  --hidden-size 96 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4 \
  --intermediate-size 256

say "teacher: supervised fine-tuning, 2 data-parallel processes"
timed teacher "$retort" launch $configs/sft_teacher.yaml
say "student: distilled from the teacher, one process each, hidden states over RPC"
timed distill "$retort" launch $configs/distill.yaml
say "student: supervised fine-tuning alone, same rows, same number of steps"
timed sft "$retort" launch $configs/sft_student.yaml

say "evaluation on held-out problems"
for name in teacher-sft student-distill student-sft; do
  "$retort" eval --model $out/$name/final --data $out/test.jsonl --exact-match \
    --max-new-tokens 48 >"$out/$name.eval.json"
done

printf '\n%-34s %12s %12s %12s %10s\n' model "exact match" "test loss" "accuracy" "train s"
# percent FILE KEY: a number from 0 to 1, times a hundred
percent() { awk "BEGIN{print 100*$(number "$1" "$2")}"; }
# row TEXT RUN TIMED: the figures of a run
row() {
  local f=$out/$2.eval.json
  printf '%-34s %11.1f%% %12.4f %11.1f%% %10s\n' "$1" "$(percent "$f" exact_match)" \
    "$(number "$f" loss)" "$(percent "$f" mean_token_accuracy)" "$(cat "$out/$3.seconds")"
}
row "teacher (SFT)" teacher-sft teacher
row "student, distilled" student-distill distill
row "student, SFT alone" student-sft sft
cat <<TEXT

Everything lies under $out/:
  teacher-sft/final  student-distill/final  student-sft/final   checkpoints that transformers opens
  */metrics.jsonl  */tensorboard/  */logs/                      what happened
Try:  echo '{"prompt": "Tom has 12 apples and buys 7 more. How many apples does Tom have?"}' \\
        >$out/ask.jsonl
      $retort generate --model $out/student-distill/final --temperature 0 \\
        --prompts $out/ask.jsonl --output $out/said.jsonl && cat $out/said.jsonl
TEXT
