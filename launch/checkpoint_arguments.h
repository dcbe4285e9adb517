// The arguments of the commands that make and change checkpoints and tokenizers. Private to the
// program.
#pragma once

#include <functional>

#include "launch/commands/commands.h"

namespace CLI {
class App;
}

namespace retort::launch {

// Adds `model`, `vocab` and `tokenizer` to a parser. The values that it binds live as long as this,
// which must outlive the parser.
class CheckpointArguments {
 public:
  // Says what is run when a command was given.
  using Bind = std::function<void(CLI::App* command, std::function<int()> action)>;
  void add_to(CLI::App& app, const Bind& on);

 private:
  void add_init(CLI::App* c, const Bind& on);
  void add_export(CLI::App* c, const Bind& on);
  void add_convert(CLI::App* c, const Bind& on);
  void add_merge(CLI::App* c, const Bind& on);
  void add_vocab(CLI::App* c, const Bind& on);
  void add_train(CLI::App* c, const Bind& on);

  ModelInitCommand init_;
  ModelExportCommand export_;
  ModelConvertCommand convert_;
  ModelMergeCommand merge_;
  VocabAddCommand vocab_;
  TokenizerTrainCommand train_;
};

}  // namespace retort::launch
