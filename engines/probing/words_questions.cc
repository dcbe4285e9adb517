// An engine that is asked in words: whether it answers, the same every time, and ends when told.
#include <chrono>

#include "base/error.h"
#include "engines/contract/options.h"
#include "engines/probing/probe.h"
#include "engines/probing/session.h"
#include "engines/weights/model_watch.h"
#include "http/url.h"

namespace retort::engines {
namespace {

constexpr int64_t kFewTokens = 2;
constexpr int kTimes = 3;  // the same question alone, and beside others
constexpr int kOthers = 7;

std::string words_of(const Written& written) {
  if (written.refused.empty()) return written.text;
  throw Error(ErrorCode::kInvalidArgument,
              "the server does not take a plain question: " + written.refused);
}

// Asks the very question that a watch will ask as long as the run goes on, so that its first answer
// is known to be a steady one or not. Other questions stand beside it, since those of a run will.
void ask_words(Questions& ask, Contract& contract) {
  const WriteRequest plain = ModelWatch::words_question();
  const Written first = ask.write_together("an answer", {plain}).front();
  contract.written = words_of(first);
  contract.answered_by = first.model;
  contract.words_repeat = contract.words_in_batch = true;
  for (int i = 0; i < kTimes; ++i) {
    const Written again = ask.write_together("the answer, again", {plain}).front();
    contract.words_repeat = *contract.words_repeat && words_of(again) == first.text;

    std::vector<WriteRequest> together{plain};
    for (int other = 0; other < kOthers; ++other)
      together.push_back({.text = "Count from " + std::to_string(kOthers * i + other) + ".",
                          .max_new_tokens = plain.max_new_tokens});
    const Written beside = ask.write_together("the answer beside others", together).front();
    contract.words_in_batch = *contract.words_in_batch && words_of(beside) == first.text;
  }

  // The server's count of tokens shows best whether it ends when told. One that does not count
  // shows it by saying so, or by less text.
  WriteRequest shorter = plain;
  shorter.max_new_tokens = kFewTokens;
  const Written cut = ask.write_together("a short answer", {shorter}).front();
  const bool less = words_of(cut).size() < first.text.size();
  contract.words_stop_at_limit = cut.tokens > 0 ? cut.tokens <= kFewTokens : cut.cut || less;
}

}  // namespace

Contract probe_words(Engine& engine, EngineKind kind, const std::string& url, Deadline deadline) {
  const auto begin = std::chrono::steady_clock::now();
  const EngineState state = ask_state(engine, deadline);
  Contract contract;
  contract.engine = kind;
  contract.version = state.version;
  contract.served_model = state.served_model;
  contract.url = http::without_secrets(url);
  contract.context_tokens = state.context_tokens;
  contract.writes = engine.abilities().writes;
  Questions ask(engine, /*ids=*/0, deadline);
  if (contract.writes) ask_words(ask, contract);

  contract.requests = ask.requests() + 1;
  contract.tokens = ask.tokens();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  contract.seconds = took.count();
  return contract;
}

}  // namespace retort::engines
