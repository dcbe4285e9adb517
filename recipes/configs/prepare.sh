#!/usr/bin/env bash
# Makes what dpo.yaml, rejection_sampling.yaml, grpo.yaml and on_policy_distill.yaml start from,
# under runs/recipes/: data, a tokenizer, a teacher that is right and a student that is half
# trained. What is there already is left alone. About five minutes on two cores. RETORT_BIN names
# another program than build/bin/retort.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
retort=${RETORT_BIN:-build/bin/retort}
out=runs/recipes
configs=recipes/configs
started=$SECONDS

bold= plain=
if [[ -t 1 ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== [%3d s] %s%s\n' "$bold" "$((SECONDS - started))" "$*" "$plain"; }
# make PATH TEXT COMMAND...: runs the command unless PATH, which it makes, is there.
make() {
  local path=$1 text=$2
  shift 2
  if [ -e "$path" ]; then
    say "$text: $path is there"
  else
    say "$text"
    "$@"
  fi
}

if [ ! -x "$retort" ]; then
  echo "$retort is missing: run ./dev build first, or set RETORT_BIN" >&2
  exit 3
fi
mkdir -p "$out"
make $out/train.jsonl "data: 12,000 arithmetic word problems" \
  "$retort" data arithmetic --output $out/train.jsonl --first 0 --count 12000 --seed 1
make $out/test.jsonl "data: 400 test problems, none of them in the training data" \
  "$retort" data arithmetic --output $out/test.jsonl --first 12000 --count 400 --seed 1
make $out/pairs.jsonl "data: the training problems as pairs of a right and a wrong solution" \
  "$retort" data arithmetic --preferences --output $out/pairs.jsonl \
  --first 0 --count 12000 --seed 1
make $out/test_pairs.jsonl "data: the test problems as pairs" \
  "$retort" data arithmetic --preferences --output $out/test_pairs.jsonl \
  --first 12000 --count 400 --seed 1

make $out/tokenizer "tokenizer of 400 tokens" \
  "$retort" tokenizer train --data $out/train.jsonl --vocab-size 400 --output $out/tokenizer
make $out/teacher-init "teacher: 1.85 million random parameters" \
  "$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output $out/teacher-init --seed 1 \
  --hidden-size 192 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4 \
  --intermediate-size 512
make $out/student-init "student: 0.48 million random parameters" \
  "$retort" model init --arch qwen3 --tokenizer $out/tokenizer --output $out/student-init --seed 2 \
  --hidden-size 96 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 4 \
  --intermediate-size 256
make $out/student/final "student: 400 steps of SFT, stopped halfway" \
  "$retort" launch $configs/prepare_student.yaml --overwrite
make $out/teacher/final "teacher: 900 steps of SFT" \
  "$retort" launch $configs/prepare_teacher.yaml --overwrite

# The file appears when it is complete.
evaluate() {
  "$retort" eval --model $out/student/final --data $out/test.jsonl --exact-match \
    --max-new-tokens 48 >$out/student.eval.json.tmp
  mv $out/student.eval.json.tmp $out/student.eval.json
}
make $out/student.eval.json "evaluation of the student on the test problems" evaluate
cat $out/student.eval.json
say "ready"
cat <<TEXT
Try:  $retort launch $configs/rejection_sampling.yaml
      $retort launch $configs/grpo.yaml
      $retort launch $configs/dpo.yaml
      $retort launch $configs/on_policy_distill.yaml
and:  $retort eval --model runs/recipes/grpo/final --data $out/test.jsonl \\
        --exact-match --max-new-tokens 48
TEXT
