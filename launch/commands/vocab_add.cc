// retort vocab add: a checkpoint with more tokens.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "launch/commands/command_line.h"
#include "launch/commands/output_folder.h"
#include "models/add_tokens.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct VocabAddCommand {
  std::string model, output;
  std::vector<std::string> tokens;
  bool special = false;
  std::string init = "mean";  // mean | copy | zero | random
  std::string from;           // mean: a description; copy: a token
  uint64_t seed = 0;
};

models::TokenInit parse_init(const VocabAddCommand& command) {
  static const std::map<std::string, models::TokenInit> kNames{
      {"mean", models::TokenInit::kMean},
      {"copy", models::TokenInit::kCopy},
      {"zero", models::TokenInit::kZero},
      {"random", models::TokenInit::kRandom}};
  const auto found = kNames.find(command.init);
  if (found == kNames.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--init '" + command.init + "' is not mean, copy, zero or random");
  if (found->second == models::TokenInit::kCopy && command.from.empty())
    throw Error(ErrorCode::kInvalidArgument, "--init copy needs --from with the token to copy");
  if (found->second != models::TokenInit::kRandom && command.seed != 0)
    throw Error(ErrorCode::kInvalidArgument, "--seed has no effect without --init random");
  return found->second;
}

int run_vocab_add(const VocabAddCommand& command) {
  const models::AddTokensOptions options{.tokens = command.tokens,
                                         .special = command.special,
                                         .init = parse_init(command),
                                         .from = command.from,
                                         .seed = command.seed};
  prepare_output_folder(command.output);
  models::AddTokensSummary summary;
  write_folder_atomically(command.output, [&](const fs::path& folder) {
    summary = models::add_tokens(command.model, folder, options);
  });
  std::printf("%s\n", JsonLine()
                          .add("output", std::string_view(command.output))
                          .add("num_added", summary.num_added)
                          .add("first_id", summary.first_id)
                          .add("vocab_size", summary.vocab_size)
                          .str()
                          .c_str());
  return 0;
}

}  // namespace

void add_vocab_add(Command vocab) {
  Command c = vocab.command("add", "a checkpoint with more tokens");
  VocabAddCommand& o = c.runs(run_vocab_add);
  c.option("model", o.model, "Hugging Face folder").required();
  c.option("--tokens", o.tokens, "new tokens; those that are there are passed over").required();
  c.flag("--special", o.special, "they are no part of a text");
  c.option("--init", o.init, "of their rows: mean | copy | zero | random").shows_default();
  c.option("--from", o.from,
           "mean: a description instead of the token's own text; copy: the token to copy");
  c.option("--seed", o.seed, "of --init random").shows_default();
  c.option("--output", o.output, "folder to write").required();
}

}  // namespace retort::launch
