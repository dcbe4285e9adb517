// The recipes that the table of keys changes, and the small models and rows that they name.
#pragma once

#include <filesystem>

namespace retort::test {

// Complete recipes, small: 16 tokens a row, two rows a micro-batch. FOLDER is the folder.
extern const char* const kSftBase;
extern const char* const kDistillBase;
extern const char* const kOnPolicyBase;
extern const char* const kDpoBase;
extern const char* const kKtoBase;
extern const char* const kRewardModelBase;
extern const char* const kGrpoBase;
extern const char* const kToolsBase;  // grpo of episodes
extern const char* const kRejectionBase;
extern const char* const kTaughtToolsBase;     // on_policy_distill of episodes
extern const char* const kRejectionToolsBase;  // rejection_sampling of episodes

// student/ and teacher/ with config and tokenizer, and JSONL files of rows.
void write_key_files(const std::filesystem::path& folder);

}  // namespace retort::test
