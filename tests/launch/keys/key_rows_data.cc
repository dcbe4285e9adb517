// Rows of the keys of `data:`.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {

using namespace observed;

std::vector<KeyRow> data_rows() {
  const std::string text = "{path: FOLDER/both.jsonl, format: text}";
  const std::string other = "columns={completion: other}";
  const std::string only_text = "data.train=[" + text + "]";
  const std::string no_eval = "data.eval=[]";
  const std::string chat = "data.train=[{path: FOLDER/chat.jsonl}]";
  const std::string end = "data.truncation_mode=keep_end";
  const std::string wrapped = "data.packing_strategy=wrapped";
  const std::string mood = "data.chat_template_kwargs={mood: w9}";
  const std::string nulls = "{path: FOLDER/nulls.jsonl}";
  const std::string no_nulls = "remove_none_values=true";
  const std::string day = "data.template_date=1999-12-";
  return {
      acts(kSftBase, "data.train=[{path: FOLDER/more.jsonl}]", batches),
      acts(kSftBase, "data.train.0.path=FOLDER/chat.jsonl", batches),
      acts(kSftBase, "data.train.0.path=FOLDER/[mc]*.jsonl", batches),
      refused(kSftBase, "data.train.0.path=FOLDER/none*.jsonl", "matches no file"),
      acts(kSftBase, "data.train.0.format=prompt_completion", batches, {only_text}),
      acts(kSftBase, "data.train.0." + other, batches),
      acts(kSftBase, "data.train.0." + no_nulls, batches, {"data.train=[" + nulls + "]", mood}),
      refused(kSftBase, "data.train.0." + no_nulls, "whose rows hold no structs", {only_text}),
      acts(kSftBase, "data.train.0.weight=2", batches),
      // once dead
      refused(kDistillBase, "data.train.0.weight=2", "has no effect on the only source"),

      acts(kSftBase, no_eval, evaluation),
      acts(kSftBase, "data.eval.0.path=FOLDER/train.jsonl", evaluation),
      acts(kSftBase, "data.eval.0.format=prompt_completion", evaluation, {"data.eval.0=" + text}),
      acts(kSftBase, "data.eval.0." + other, evaluation),
      acts(kSftBase, "data.eval.0." + no_nulls, evaluation, {"data.eval=[" + nulls + "]", mood}),
      // once dead
      refused(kSftBase, "data.eval.0.weight=2", "an evaluation sees every row once"),

      acts(kSftBase, "data.max_length=8", batches),
      acts(kSftBase, end, batches, {"data.max_length=4"}),
      refused(kSftBase, end, "has no effect with packing_strategy: wrapped", {wrapped}),
      refused(kKtoBase, end, "keep_end is for sft, distill and dpo"),
      refused(kRewardModelBase, end, "keep_end is for sft, distill and dpo"),
      refused(kGrpoBase, end, "prompts are never cut"),
      refused(kRejectionBase, end, "prompts are never cut"),
      refused(kOnPolicyBase, end, "prompts, which are never cut"),
      acts(kSftBase, "data.shuffle=false", batches),
      acts(kSftBase, "data.on_bad_sample=skip", batches_or_error,
           {"data.train=[{path: FOLDER/bad.jsonl}]"}),
      acts(kSftBase, "data.packing=false", batches),
      refused(kDpoBase, "data.packing=false", "pairs are always laid end to end"),
      refused(kKtoBase, "data.packing=false", "completions are always laid end to end"),
      refused(kGrpoBase, "data.packing=false", "completions are always laid end to end"),

      acts(kSftBase, wrapped, batches),
      refused(kSftBase, wrapped, "which packing: false does not form", {"data.packing=false"}),
      refused(kDpoBase, wrapped, "pairs, which are never cut"),
      refused(kKtoBase, wrapped, "completions, which are never cut"),
      refused(kGrpoBase, wrapped, "completions, which are never cut"),
      refused(kRejectionBase, wrapped, "prompts with their completions"),
      refused(kOnPolicyBase, wrapped, "rows whose prompts the student continues"),

      acts(kSftBase, "data.chat_template=FOLDER/other.jinja", batches, {chat}),
      acts(kSftBase, "data.chat_template=chatml", batches, {chat}),
      refused(kSftBase, "data.chat_template=''", "data.chat_template is empty"),
      refused(kSftBase, "data.chat_template=chatml", "no source holds messages",
              {only_text, no_eval}),
      acts(kSftBase, mood, batches, {chat}),
      refused(kSftBase, mood, "no source holds messages", {only_text, no_eval}),
      refused(kSftBase, "data.chat_template_kwargs={tools: []}", "give each row of messages"),
      acts(kSftBase, day + "31", batches,
           {chat, day + "30", "data.chat_template_kwargs={dated: true}"}),
      refused(kSftBase, day + "31", "no source holds messages", {only_text, no_eval}),
      refused(kSftBase, day + "32", "expected a day like"),

      in_run("data.tokenized_cache", "tests/recipes/runs/data_files_run_test.cc",
             "data.tokenized_cache="),
      refused(kSftBase, "data.tokenized_cache=''", "data.tokenized_cache is empty"),
      refused(kDpoBase, "data.tokenized_cache=x", "pairs, which are never cut"),
      refused(kKtoBase, "data.tokenized_cache=x", "completions, which are never cut"),
      refused(kGrpoBase, "data.tokenized_cache=x", "completions, which are never cut"),
      refused(kRejectionBase, "data.tokenized_cache=x", "prompts with their completions"),
      refused(kOnPolicyBase, "data.tokenized_cache=x", "whose prompts the student continues"),

      acts(kSftBase, "data.completion_only_loss=false", batches),
      acts(kSftBase, "data.assistant_only_loss=false", batches, {chat}),
      // once dead, both keys: the recipe says what is trained on
      refused(kDpoBase, "data.completion_only_loss=false", "trains on both completions"),
      refused(kDpoBase, "data.assistant_only_loss=false", "trains on both completions"),
      refused(kKtoBase, "data.completion_only_loss=false", "trains on the completion of a row"),
      refused(kKtoBase, "data.assistant_only_loss=false", "trains on the completion of a row"),
      refused(kGrpoBase, "data.completion_only_loss=false", "trains on the completions of"),
      refused(kGrpoBase, "data.assistant_only_loss=false", "trains on the completions of"),
      refused(kOnPolicyBase, "data.completion_only_loss=false", "a prompt's tokens targets"),
      refused(kOnPolicyBase, "data.assistant_only_loss=false", "a prompt's tokens targets"),
      refused(kRejectionBase, "data.completion_only_loss=false", "completions that it keeps"),
      refused(kRejectionBase, "data.assistant_only_loss=false", "completions that it keeps"),
      // once dead, both keys: no row has what they are about
      refused(kSftBase, "data.completion_only_loss=false", "no source holds such rows",
              {only_text, no_eval}),
      refused(kSftBase, "data.assistant_only_loss=false", "no source holds such rows",
              {only_text, no_eval}),
  };
}

}  // namespace retort::test
