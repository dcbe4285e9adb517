#include "engines/llamacpp/session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future_combinators.h"

namespace retort::engines::llamacpp {
namespace {

// The server copies the whole answer once for each field that is picked from it: with 64 entries
// that takes longer than all the rest of a small model's position.
constexpr int64_t kMaxTopOfFields = 16;

bool is_plain(const std::string& piece) {
  return !piece.empty() &&
         std::all_of(piece.begin(), piece.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

int32_t find_plain(const Json& answer, int64_t vocab_rows) {
  for (const Json& token : array(answer, "tokens")) {
    const Json& piece = member(token, "piece");
    if (!piece.is_string() || !is_plain(piece.get<std::string>())) continue;
    return static_cast<int32_t>(integer(token, "id", 0, vocab_rows - 1));
  }
  throw Error(ErrorCode::kUnavailable,
              "the server's tokenizer has no token for digits or letters alone, which the "
              "log-probabilities of parts of characters need");
}

}  // namespace

PromptText::PromptText(std::span<const int32_t> ids) {
  const auto written = std::make_shared<Written>();
  for (const int32_t id : ids) {
    if (!written->text.empty()) written->text += ',';
    written->text += std::to_string(id);
    written->ends.push_back(written->text.size());
  }
  written_ = written;
}

http::Piece PromptText::prefix(size_t count) const {
  const size_t end = count == 0 ? 0 : written_->ends.at(count - 1);
  return {.bytes = std::string_view(written_->text).substr(0, end), .owner = written_};
}

Session::Session(Loop& loop, const ExternalOptions& options, http::Url base, std::string key)
    : loop_(loop),
      options_(options),
      server_(loop, options, std::move(base), std::move(key)),
      slots_(loop) {}

Future<ServedModel> Session::read_served(Deadline deadline) {
  return read_served_model(server_, options_.served_model, deadline)
      .then([this](ServedModel served) {
        served_ = served;
        slots_.set_count(served.num_slots);
        return served;
      });
}

Future<ServedModel> Session::served(Deadline deadline) {
  if (served_) return ready_future(*served_);
  return read_served(deadline);
}

void Session::forget() {
  served_.reset();
  plain_token_.reset();
}

Future<Completion> Session::complete(const CompletionAsk& ask, Deadline deadline) {
  RETORT_CHECK(served_) << "a completion is asked for after the facts";
  Json rest = ask.parameters;
  rest["model"] = served_->state.served_model;
  if (ask.bounds.num_top <= kMaxTopOfFields) {
    rest["response_fields"] = completion_fields();
    if (ask.with_settings) rest["response_fields"].push_back("generation_settings");
  }

  // The ids are sent from the text that all requests of a run share (PromptText), and stand before
  // the parameters. So the brace that opens those is replaced by the bracket that closes the ids.
  std::string tail = rest.dump();
  tail.replace(0, 1, "],");
  Ask post{.path = "/completion",
           .body = {http::piece_of("{\"prompt\":["), ask.ids.prefix(ask.prompt_tokens),
                    http::piece_of(std::move(tail))},
           .answer_bytes = completion_bytes(static_cast<int64_t>(ask.prompt_tokens), ask.bounds),
           .repeatable = ask.repeatable};
  return server_.ask<Completion>(
      std::move(post), deadline,
      [bounds = ask.bounds](const Json& answer) { return read_completion(answer, bounds); });
}

Future<int32_t> Session::plain_token(Deadline deadline) {
  RETORT_CHECK(served_) << "a token is asked for after the facts";
  if (plain_token_) return ready_future(*plain_token_);
  const Json body{{"content", "1 a 0"},
                  {"add_special", false},
                  {"with_pieces", true},
                  {"model", served_->state.served_model}};
  const int64_t vocab_rows = served_->state.vocab_rows;
  return server_
      .ask<int32_t>({.path = "/tokenize", .body = {http::piece_of(body.dump())}}, deadline,
                    [vocab_rows](const Json& answer) { return find_plain(answer, vocab_rows); })
      .then([this](int32_t id) {
        plain_token_ = id;
        return id;
      });
}

}  // namespace retort::engines::llamacpp
