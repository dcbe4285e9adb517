// retort chat: talk to a checkpoint in the terminal.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launch/commands/command_line.h"
#include "models/generation/engine.h"
#include "models/generation/request.h"
#include "models/loaded_model.h"

namespace retort::launch {
namespace {

struct ChatCommand {
  std::string model, dtype;
  std::string system;  // the conversation begins with this message; empty: with the user's first
  int64_t max_new_tokens = 256;
  models::SamplingOptions sampling{.temperature = 0.7};
};

// Prints completed text as tokens arrive; an incomplete UTF-8 character waits for its other bytes.
class StreamPrinter {
 public:
  explicit StreamPrinter(const models::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(int32_t id) {
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_, /*skip_special_tokens=*/true);
    if (text.size() <= printed_ || text.ends_with("\xef\xbf\xbd")) return;
    std::fwrite(text.data() + printed_, 1, text.size() - printed_, stdout);
    std::fflush(stdout);
    printed_ = text.size();
  }
  std::string text() const { return tokenizer_.decode(ids_, true); }

 private:
  const models::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_ = 0;
};

std::string message(std::string_view role, std::string_view content) {
  return JsonLine().add("role", role).add("content", content).str();
}

int run_chat(const ChatCommand& command) {
  const models::LoadedModel model = models::load_model(command.model, command.dtype);
  if (!model.chat.exists() && !command.system.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--system needs a chat template, and " + command.model +
                    " has none; leave it out, or begin the first line with that text");
  if (!model.chat.exists())
    std::printf("(this checkpoint has no chat template: each line is continued as plain text)\n");
  std::printf("Type a message; an empty line or Ctrl-D ends, /reset forgets the conversation.\n");

  // One engine serves all turns, because it keeps the conversation's keys and values from turn to
  // turn.
  models::Engine engine(model.decoder);
  const std::string beginning = command.system.empty() ? "" : message("system", command.system);
  std::string conversation = beginning;
  std::string line;
  uint64_t turn = 0;
  for (;;) {
    std::printf("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || line.empty()) break;
    if (line == "/reset") {
      conversation = beginning;
      continue;
    }

    // The whole conversation so far is the prompt.
    std::vector<int32_t> prompt;
    if (model.chat.exists()) {
      conversation += (conversation.empty() ? "" : ", ") + message("user", line);
      prompt =
          model.tokenizer.encode(model.chat.render("[" + conversation + "]", true).text, false);
    } else {
      prompt = model.tokenizer.encode(line, true);
    }

    // A prompt without room for an answer cannot be continued.
    const int64_t room =
        model.decoder.config().max_position_embeddings - static_cast<int64_t>(prompt.size());
    if (room < 1) {
      std::printf("(this fills the model's %lld positions; the conversation starts anew)\n",
                  static_cast<long long>(model.decoder.config().max_position_embeddings));
      conversation = beginning;
      continue;
    }

    // Every turn has noise of its own.
    models::SamplingOptions sampling = command.sampling;
    sampling.seed += turn++;
    sampling.num_ids = model.tokenizer.vocab_size();
    StreamPrinter printer(model.tokenizer);
    engine.run({.prompts = {prompt},
                .draw = {.sampling = sampling,
                         .max_new_tokens = std::min(command.max_new_tokens, room),
                         .eos_token_ids = model.eos_token_ids}},
               {.on_token = [&](size_t, int32_t id, float) { printer.add(id); }});
    std::printf("\n");
    if (model.chat.exists()) conversation += ", " + message("assistant", printer.text());
  }
  return 0;
}

}  // namespace

void add_chat(Command program) {
  Command c = program.command("chat", "talk to a checkpoint in the terminal");
  ChatCommand& o = c.runs(run_chat);
  c.option("--model", o.model, "Hugging Face folder").required();
  c.option("--system", o.system, "a system message that the conversation begins with");
  c.option("--dtype", o.dtype, "float32 | bfloat16 (default: as the file)");
  c.option("--max-new-tokens", o.max_new_tokens).shows_default();
  c.option("--temperature", o.sampling.temperature, "0: greedy").shows_default();
  c.option("--top-p", o.sampling.top_p).shows_default();
  c.option("--seed", o.sampling.seed).shows_default();
}

}  // namespace retort::launch
