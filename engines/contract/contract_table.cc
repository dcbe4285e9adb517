// A contract for a person.
#include <cstdio>

#include "base/printable.h"
#include "engines/contract/contract.h"

namespace retort::engines {
namespace {

class Table {
 public:
  void line(const std::string& name, const std::string& value) {
    const std::string gap(name.size() < kWidth ? kWidth - name.size() : 1, ' ');
    // Much of the text is the server's own, which must not act on a terminal.
    text_ += name + gap + printable(value) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  static constexpr size_t kWidth = 24;
  std::string text_;
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

std::string difference_text(const Difference& difference) {
  if (difference.count == 0) return "not measured";
  return "at most " + short_number(difference.largest) + ", mean " + short_number(difference.mean) +
         " nats over " + std::to_string(difference.count);
}

std::string count_text(int64_t count) { return count == 0 ? "not said" : std::to_string(count); }

std::string seen(const std::optional<bool>& value, const char* yes, const char* no) {
  return !value ? "not asked" : *value ? yes : no;
}

std::string with_reason(std::string_view name, const std::string& why) {
  return std::string(name) + (why.empty() ? "" : ": " + why);
}

std::string abilities_text(const Contract& contract) {
  std::string text;
  const auto add = [&](bool has, const std::string& name) {
    if (has) text += (text.empty() ? "" : ", ") + name;
  };
  add(contract.draws, "draws");
  add(contract.scores, "scores given tokens");
  add(contract.top_k > 0, "top-k up to " + std::to_string(contract.top_k));
  add(contract.named_ids > 0,
      "log-probabilities at up to " + std::to_string(contract.named_ids) + " named ids");
  add(contract.gives_hidden_states,
      "hidden states of width " + std::to_string(contract.hidden_size));
  add(contract.rewards > 0, "rewards of " + std::to_string(contract.rewards) +
                                (contract.rewards == 1 ? " number" : " numbers"));
  add(contract.writes, "answers in words");
  return text.empty() ? "nothing" : text;
}

void add_draws(const Contract& contract, Table& table) {
  table.line("drawn log-probability", with_reason(enum_name(contract.drawn), contract.drawn_why));
  table.line("truncation", seen(contract.truncates, "honoured", "IGNORED"));
  table.line("end tokens", with_reason(enum_name(contract.ends), contract.ends_why));
  table.line("same seed", seen(contract.seeds_repeat, "same tokens", "OTHER tokens"));
  table.line("same seed in a batch", seen(contract.seeds_in_batch, "same tokens", "other tokens"));
  table.line("other seed", seen(contract.seeds_differ, "other tokens", "THE SAME tokens"));
  table.line("drawn and scored", difference_text(contract.drawn_and_scored));
}

// An engine that is asked in words shows no tokens, so its table has other lines.
void add_words(const Contract& contract, Table& table) {
  constexpr size_t kShown = 100;
  table.line("answer to the probe", contract.written.substr(0, kShown));
  table.line("the same question", seen(contract.words_repeat, "same words", "OTHER words"));
  table.line("in a batch", seen(contract.words_in_batch, "same words", "other words"));
  table.line("length limit", seen(contract.words_stop_at_limit, "honoured", "IGNORED"));
}

void add_numbers(const Contract& contract, Table& table) {
  table.line("context", count_text(contract.context_tokens) + " tokens");
  table.line("vocabulary", count_text(contract.vocab_rows) + " rows; tokenizer " +
                               std::to_string(contract.tokenizer_ids) + " ids, " +
                               contract.tokenizer_fingerprint.substr(0, 16) +
                               (contract.highest_id ? "" : "; highest id REFUSED"));
  table.line("ids", with_reason(enum_name(contract.ids), contract.ids_why));
  if (contract.draws) add_draws(contract, table);

  // The next lines say in which situations the engine's numbers stay the same.
  if (contract.whole_mass)
    table.line("whole vocabulary", "probabilities sum to " + std::to_string(*contract.whole_mass));
  table.line("again", difference_text(contract.repeated));
  table.line("with a warm prefix", difference_text(contract.warmed));
  table.line("in a longer sequence", difference_text(contract.extended));
  table.line("in a batch", difference_text(contract.batched));
  if (contract.named.count > 0)
    table.line("named ids", difference_text(contract.named));
  else if (!contract.named_why.empty())
    table.line("named ids", "REFUSED: " + contract.named_why);
  table.line("local copy", difference_text(contract.local));
  if (contract.greedy_equal_local)
    table.line("greedy tokens", std::to_string(*contract.greedy_equal_local) + " of " +
                                    std::to_string(contract.greedy_tokens) +
                                    " as the local copy draws them");
  if (contract.hidden_difference)
    table.line("hidden states",
               "at most " + short_number(*contract.hidden_difference) + " off, relative");
  if (contract.reward) {
    table.line("reward of the text", short_number(*contract.reward));
    table.line("reward again",
               "at most " + short_number(contract.reward_repeated.largest) + " off");
    table.line("reward in a batch",
               "at most " + short_number(contract.reward_batched.largest) + " off");
  }
  table.line("tolerance", short_number(contract.tolerance) + " nats" +
                              (contract.tolerance_given ? " (the recipe's)" : ""));
}

}  // namespace

std::string contract_table(const Contract& contract) {
  Table table;
  table.line("engine", std::string(enum_name(contract.engine)) +
                           (contract.version.empty() ? "" : " " + contract.version) + " at " +
                           contract.url);
  table.line("model", contract.served_model);
  table.line("gives", abilities_text(contract));
  if (contract.writes)
    add_words(contract, table);
  else
    add_numbers(contract, table);
  table.line("asked", std::to_string(contract.requests) + " requests, " +
                          std::to_string(contract.tokens) + " tokens, " +
                          short_number(contract.seconds) + " s");
  return table.take();
}

}  // namespace retort::engines
