#!/usr/bin/env bash
# The demo: generate data, train a tokenizer and a teacher, distil it into a student of a quarter of
# its parameters in separate processes, train the same student by SFT alone, evaluate all three on
# held-out problems. `./dev demo` builds and runs it.
#
# The teacher has seen many rows with right answers. The student has few rows, and of their answers
# half are wrong, as in data that nobody checked. Both of its trainings have these rows, the same
# steps, learning rate, first weights and order of rows; they differ in the loss alone. SFT imitates
# the answers as they stand. In distillation the teacher says at each token how it would go on.
#
#   --seeds N   students of the seeds 1 to N, each distilled and trained alone, beside the one
#               teacher (default 1). A seed decides a student's first weights and the order of rows.
set -euo pipefail
seeds=1
if [[ $# -gt 0 ]]; then
  if [[ $# -ne 2 || $1 != --seeds || ! $2 =~ ^[1-9][0-9]?$ ]]; then
    echo "usage: demo [--seeds N], N from 1 to 99" >&2
    exit 2
  fi
  seeds=$2
fi
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
evaluate() {
  "$retort" eval --model "$out/$1/final" --data $out/test.jsonl --exact-match \
    --max-new-tokens 48 >"$out/$1.eval.json"
}

rm -rf "$out"
mkdir -p "$out"
say "data: arithmetic word problems (the test problems never appear in training)"
rows=1000 wrong=50
"$retort" data arithmetic --output $out/train.jsonl --first 0 --count 12000 --seed 1
"$retort" data arithmetic --output $out/test.jsonl --first 12000 --count 400 --seed 1
head -n 2 $out/test.jsonl
say "the student's own data: $rows other problems, $wrong % of them with a wrong solution"
"$retort" data arithmetic --output $out/noisy.jsonl --first 12400 --count $rows --seed 1 \
  --mistakes $wrong
head -n 3 $out/noisy.jsonl

say "tokenizer and the teacher's random checkpoint"
"$retort" tokenizer train --data $out/train.jsonl --vocab-size 400 --output $out/tokenizer
"$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output $out/teacher-init --seed 1 \
  --hidden-size 192 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4 \
  --intermediate-size 512

say "teacher: supervised fine-tuning, 2 data-parallel processes"
timed teacher-sft "$retort" launch $configs/sft_teacher.yaml
evaluate teacher-sft

# suffix SEED: of the folders of its students; those of seed 1 are the ones that the recipes name.
suffix() { [[ $1 -eq 1 ]] || echo "-$1"; }
for ((seed = 1; seed <= seeds; seed++)); do
  of=$(suffix $seed)
  student=$out/student-init$of
  say "student of seed $seed: a random checkpoint"
  "$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output "$student" \
    --seed $((seed + 1)) --hidden-size 96 --num-hidden-layers 4 --num-attention-heads 4 \
    --num-key-value-heads 4 --intermediate-size 256
  say "student of seed $seed: distilled from the teacher, one process each, hidden states over RPC"
  timed "student-distill$of" "$retort" launch $configs/distill.yaml seed=$seed \
    "output_dir=$out/student-distill$of" "roles.student.model=$student"
  say "student of seed $seed: supervised fine-tuning alone, the same but for the loss"
  timed "student-sft$of" "$retort" launch $configs/sft_student.yaml seed=$seed \
    "output_dir=$out/student-sft$of" "roles.student.model=$student"
  say "student of seed $seed: evaluation on held-out problems"
  evaluate "student-distill$of"
  evaluate "student-sft$of"
done

# percent RUN KEY: a number from 0 to 1 of its evaluation, times a hundred
percent() { awk "BEGIN{print 100*$(number "$out/$1.eval.json" "$2")}"; }
# row TEXT RUN: the figures of a run
row() {
  printf '%-34s %11.1f%% %12.4f %11.1f%% %10s\n' "$1" "$(percent "$2" exact_match)" \
    "$(number "$out/$2.eval.json" loss)" "$(percent "$2" mean_token_accuracy)" \
    "$(cat "$out/$2.seconds")"
}
# above A B: whether number A is larger than number B
above() { awk "BEGIN{exit !($1 > $2)}"; }
table() {
  local seed of name more_right=0 lower_loss=0
  printf '%-34s %12s %12s %12s %10s\n' model "exact match" "test loss" "accuracy" "train s"
  row "teacher (SFT)" teacher-sft
  for ((seed = 1; seed <= seeds; seed++)); do
    of=$(suffix $seed) name=
    if ((seeds > 1)); then name=", seed $seed"; fi
    row "student, distilled$name" "student-distill$of"
    row "student, SFT alone$name" "student-sft$of"
    if above "$(percent "student-distill$of" exact_match)" "$(percent "student-sft$of" exact_match)"
    then more_right=$((more_right + 1)); fi
    if above "$(number "$out/student-sft$of.eval.json" loss)" \
      "$(number "$out/student-distill$of.eval.json" loss)"
    then lower_loss=$((lower_loss + 1)); fi
  done
  if ((seeds > 1)); then
    printf '\nDistilled is above SFT alone in %d of %d seeds by exact match' $more_right "$seeds"
    printf ', with a lower test loss in %d.\n' $lower_loss
  fi
}
cat <<TEXT

Both students have the same $rows rows, $wrong % of them wrong, the same steps, learning rate, first
weights and order of rows; they differ in the loss alone. The 400 test problems are in no training.

TEXT
table | tee $out/table.txt
cat <<TEXT

Everything lies under $out/:
  teacher-sft/final  student-distill/final  student-sft/final   checkpoints that transformers opens
  */metrics.jsonl  */tensorboard/  */logs/                      what happened
Try:  echo '{"prompt": "Tom has 12 apples and buys 7 more. How many apples does Tom have?"}' \\
        >$out/ask.jsonl
      $retort generate --model $out/student-distill/final --temperature 0 \\
        --prompts $out/ask.jsonl --output $out/said.jsonl && cat $out/said.jsonl
TEXT
