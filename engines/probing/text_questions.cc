// An engine that is asked in words: whether it answers, the same every time, and ends when told.
#include <chrono>

#include "base/error.h"
#include "engines/probe.h"
#include "engines/probing/session.h"
#include "http/url.h"

namespace retort::engines {
namespace {

constexpr int64_t kAnswerTokens = 32;
constexpr int64_t kFewTokens = 2;

WriteRequest plain_question() {
  return {.text = "Name the first three planets from the sun, and nothing else.",
          .max_new_tokens = kAnswerTokens};
}

void ask_words(Questions& ask, Contract& contract) {
  const Written first = ask.write_together("an answer", {plain_question()}).front();
  contract.written = first.text;
  const Written again = ask.write_together("the answer, again", {plain_question()}).front();
  contract.texts_repeat = again.text == first.text;

  const auto other = [](const std::string& text) {
    return WriteRequest{.text = text, .max_new_tokens = kAnswerTokens};
  };
  const std::vector<Written> together = ask.write_together(
      "the answer beside others",
      {other("What is a retort?"), plain_question(), other("Count to ten."), other("Say no.")});
  contract.texts_in_batch = together[1].text == first.text;

  WriteRequest shorter = plain_question();
  shorter.max_new_tokens = kFewTokens;
  const Written cut = ask.write_together("a short answer", {shorter}).front();
  contract.texts_end =
      cut.tokens <= kFewTokens && (cut.cut || cut.text.size() <= first.text.size());
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
