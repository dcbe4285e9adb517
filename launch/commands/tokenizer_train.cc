// retort tokenizer train: a tokenizer from nothing but text.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/commands/command_line.h"
#include "models/text/tokenizer.h"
#include "recipes/data/jsonl.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct TokenizerTrainCommand {
  std::vector<std::string> data;
  std::string output;
  int64_t vocab_size = 4096;
};

int run_tokenizer_train(const TokenizerTrainCommand& command) {
  // Every string in a row counts, however deep it stands.
  std::vector<std::string> texts;
  for (const std::string& path : command.data) {
    const data::JsonlFile file(path);
    for (int64_t i = 0; i < file.size(); ++i) {
      const auto row = nlohmann::json::parse(file.line(i), nullptr, /*allow_exceptions=*/false);
      if (row.is_discarded() || !row.is_object())
        throw Error(ErrorCode::kInvalidArgument,
                    path + ":" + std::to_string(file.line_number(i)) +
                        ": not a JSON object; every line must be one row");
      const std::function<void(const nlohmann::json&)> collect = [&](const nlohmann::json& value) {
        if (value.is_string()) texts.push_back(value.get<std::string>());
        if (value.is_structured())
          for (const auto& item : value)
            collect(item);
      };
      collect(row);
    }
  }

  fs::create_directories(command.output);
  models::train_tokenizer(texts, {.vocab_size = command.vocab_size}, command.output);
  const models::Tokenizer tokenizer = models::Tokenizer::load(command.output);
  std::printf("wrote %s: %lld tokens from %zu texts\n", command.output.c_str(),
              static_cast<long long>(tokenizer.vocab_size()), texts.size());
  return 0;
}

}  // namespace

void add_tokenizer_train(Command tokenizer) {
  Command c = tokenizer.command("train", "byte-level BPE with a chat template");
  TokenizerTrainCommand& o = c.runs(run_tokenizer_train);
  c.option("--data", o.data, "JSONL files; every string in a row counts").required();
  c.option("--vocab-size", o.vocab_size).shows_default();
  c.option("--output", o.output, "folder to write").required();
}

}  // namespace retort::launch
