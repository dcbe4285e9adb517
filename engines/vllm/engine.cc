#include "engines/vllm/engine.h"

#include <utility>

#include "base/error.h"
#include "base/future_combinators.h"
#include "engines/contract/drawn_tokens.h"
#include "engines/contract/scored_tokens.h"
#include "engines/vllm/completion_question.h"
#include "engines/vllm/completion_reader.h"
#include "engines/vllm/named_rows.h"
#include "engines/vllm/refusal.h"
#include "engines/vllm/server.h"
#include "engines/vllm/weights.h"
#include "engines/wire/plain_admin.h"
#include "engines/wire/request_names.h"
#include "engines/wire/retry.h"

namespace retort::engines::vllm {
namespace {

constexpr int64_t kDefaultMaxLogProbs = 20;  // vLLM's own
constexpr const char* kTooMuch = "the server answers more than was asked for; is it vLLM?";

class Vllm final : public Engine {
 public:
  Vllm(const ExternalOptions& options, const std::string& url, const std::string& key)
      : options_(options), server_(options, url, key) {
    const WeightRoute via = options.weights.via;
    if (via != WeightRoute::kNone && via != WeightRoute::kFolder)
      throw Error(ErrorCode::kInvalidArgument, "weights.via: vLLM takes weights as a folder alone");
  }

  Abilities abilities() const override {
    const auto served = server_.known();
    const bool known = served && served->limit;
    return {.draws = true,
            .scores = true,
            .max_top_k = known ? served->limit->allowed : kDefaultMaxLogProbs,
            .seeds = true,
            .max_named_ids = known ? served->limit->allowed : kDefaultMaxLogProbs};
  }

  Future<EngineState> state(Deadline deadline) override;
  Future<Drawn> draw(DrawRequest request, Deadline deadline) override;
  Future<Scored> score(ScoreRequest request, Deadline deadline) override;
  Future<at::Tensor> log_probs_at(ScoreRequest request, at::Tensor ids, Deadline deadline) override;
  Future<Empty> load_weights(std::string path, Deadline deadline) override;

 private:
  void check_room(const Served& served, int64_t num_given, int64_t num_new) const;
  Future<Drawn> draw_from(const Served& served, DrawRequest request, Deadline deadline);
  Future<Scored> score_from(const Served& served, const ScoreRequest& asked, Deadline deadline);
  Future<at::Tensor> named_from(const Served& served, const ScoreRequest& asked,
                                const at::Tensor& ids, Deadline deadline);
  Future<Empty> reload(const std::string& path, Deadline deadline);
  Future<Empty> reset_cache(Deadline deadline);

  const ExternalOptions options_;
  RequestNames names_;
  Server server_;  // the last member: its end runs what uses the others
};

Future<EngineState> Vllm::state(Deadline deadline) {
  http::Request health = server_.http().to(http::Method::kGet, "/health");
  health.expected_type.clear();
  // A proxy in front of the server may pass on /v1 alone. Then the list of models shows that the
  // server is there.
  return done_or_missing(server_.http().send(std::move(health), deadline))
      .then([this, deadline](Empty) { return server_.version(deadline); })
      .then([this, deadline](std::string version) {
        return server_.ask(deadline, Wait::kNot).then([version](Served served) {
          return EngineState{.version = version,
                             .served_model = served.model.name,
                             .vocab_rows = served.limit ? served.limit->asked : 0,
                             .context_tokens = served.model.context_tokens};
        });
      });
}

// vLLM draws at least one token, also for a score, so that one needs room too. Without room for all
// of a draw it draws fewer tokens and does not say so; here that is an error before anything is
// sent.
void Vllm::check_room(const Served& served, int64_t num_given, int64_t num_new) const {
  const int64_t context = served.model.context_tokens;
  if (context == 0 || num_given <= context - num_new) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the server's context holds " + std::to_string(context) + " tokens, and " +
                  std::to_string(num_given) + " that are given with " + std::to_string(num_new) +
                  " that it draws are more; start it with a larger --max-model-len, or ask for "
                  "less")
      .with("url", server_.http().url().shown());
}

Future<Drawn> Vllm::draw(DrawRequest request, Deadline deadline) {
  return server_.served(deadline).then(
      [this, request = std::move(request), deadline](Served served) mutable {
        return draw_from(served, std::move(request), deadline);
      });
}

Future<Drawn> Vllm::draw_from(const Served& served, DrawRequest asked, Deadline deadline) {
  check_room(served, static_cast<int64_t>(asked.prompt.size()), asked.how.max_new_tokens);
  const int64_t vocab_rows = served.limit ? served.limit->asked : 0;
  const std::string id = names_.next();
  Question question = draw_question(asked, served.model.name, id, vocab_rows);
  auto reader = std::make_shared<CompletionReader>(asked.prompt, asked.how.max_new_tokens, nullptr);

  // A draw is not sent again when its connection breaks: its tokens are lost, and a second draw
  // need not be the same.
  http::Request request = server_.http().post_for_pieces(
      "/v1/completions", std::move(question.body), question.body_bytes, kTooMuch,
      [reader](std::string_view piece) { reader->add(piece); });
  request.idempotent = false;
  request.headers.push_back({"X-Request-Id", id});
  auto read = [reader, asked = std::move(asked)](const http::Response&) {
    reader->end();
    return checked_drawn(std::move(reader->drawn), asked);
  };
  return map_error(
      server_.http().ask(std::move(request), deadline, Wait::kUntilDeadline, std::move(read)),
      explained);
}

Future<Scored> Vllm::score(ScoreRequest request, Deadline deadline) {
  return retry_once_with(server_.served(deadline),
                         [this, request = std::move(request), deadline](const Served& served) {
                           return score_from(served, request, deadline);
                         });
}

Future<Scored> Vllm::score_from(const Served& served, const ScoreRequest& asked,
                                Deadline deadline) {
  Question question = score_question(asked, served.model.name, names_.next());
  check_room(served, num_scored_tokens(asked), 1);

  // The reader writes into the rows. One object holds both, so that neither outlives the other.
  struct Reading {
    explicit Reading(const ScoreRequest& asked)
        : rows(asked),
          answer({asked.token_ids.begin(), asked.token_ids.begin() + num_scored_tokens(asked)}, 1,
                 &rows) {}
    PromptRows rows;
    CompletionReader answer;
  };
  auto reading = std::make_shared<Reading>(asked);

  http::Request request = server_.http().post_for_pieces(
      "/v1/completions", std::move(question.body), question.body_bytes, kTooMuch,
      [reading](std::string_view piece) { reading->answer.add(piece); });
  request.resends = 0;  // retry_once() asks with a reader of its own
  const auto read = [reading](const http::Response&) {
    reading->answer.end();
    return reading->rows.take();
  };
  return map_error(server_.http().ask(std::move(request), deadline, Wait::kUntilDeadline, read),
                   explained);
}

Future<at::Tensor> Vllm::log_probs_at(ScoreRequest request, at::Tensor ids, Deadline deadline) {
  return retry_once_with(
      server_.served(deadline),
      [this, request = std::move(request), ids = std::move(ids), deadline](const Served& served) {
        return named_from(served, request, ids, deadline);
      });
}

Future<at::Tensor> Vllm::named_from(const Served& served, const ScoreRequest& asked,
                                    const at::Tensor& ids, Deadline deadline) {
  Question question = named_question(asked, ids, served.model.name, names_.next());
  check_room(served, num_scored_tokens(asked), 1);
  auto rows = std::make_shared<NamedRows>(asked, ids.size(1));

  http::Request request = server_.http().post_for_pieces(
      "/inference/v1/generate", std::move(question.body), question.body_bytes, kTooMuch,
      [rows](std::string_view piece) { rows->add(piece); });
  request.resends = 0;  // retry_once() asks with a reader of its own
  const auto read = [rows](const http::Response&) { return rows->take(); };
  return map_error(server_.http().ask(std::move(request), deadline, Wait::kUntilDeadline, read),
                   explained_named);
}

Future<Empty> Vllm::load_weights(std::string path, Deadline deadline) {
  // The steps stand in the order of what they trust: a folder that cannot be right is refused
  // before the server drops its weights, the prefix cache is reset once the new ones are there, and
  // the last step is a score, so that whoever waits knows that the server computes again.
  return try_future([&] {
           refuse_plain_admin(server_.http().url(), options_.allow_plain_admin, "/collective_rpc");
           check_weight_folder(path);
           return reload(path, deadline);
         })
      .then([this, deadline](Empty) { return reset_cache(deadline); })
      .then([this, deadline](Empty) { return state(deadline); })
      .then([this, deadline](EngineState) {
        return score({.token_ids = {0, 0}, .positions = {0}}, deadline);
      })
      .then([](Scored) { return Empty{}; });
}

Future<Empty> Vllm::reload(const std::string& path, Deadline deadline) {
  http::Request request = server_.http().post("/collective_rpc", reload_question(path));
  request.limits.attempt = options_.load_timeout;
  request.idempotent = false;  // one that broke may still go on
  return server_.http().administer(std::move(request), deadline, check_reloaded, explained_admin);
}

Future<Empty> Vllm::reset_cache(Deadline deadline) {
  http::Request request = server_.http().to(http::Method::kPost, "/reset_prefix_cache");
  request.expected_type.clear();  // older versions answer nothing
  return server_.http().administer(std::move(request), deadline, check_cache_reset,
                                   explained_admin);
}

}  // namespace

std::unique_ptr<Engine> make_vllm(const ExternalOptions& options, const std::string& url,
                                  const std::string& key) {
  return std::make_unique<Vllm>(options, url, key);
}

}  // namespace retort::engines::vllm
