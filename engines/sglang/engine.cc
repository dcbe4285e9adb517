#include "engines/sglang/engine.h"

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/future_combinators.h"
#include "engines/contract/drawn_tokens.h"
#include "engines/contract/scored_tokens.h"
#include "engines/sglang/generate_question.h"
#include "engines/sglang/generate_reader.h"
#include "engines/sglang/refusal.h"
#include "engines/sglang/server.h"
#include "engines/sglang/weights.h"
#include "engines/weights/weight_folder.h"
#include "engines/wire/answer_status.h"
#include "engines/wire/plain_admin.h"
#include "engines/wire/request_names.h"
#include "engines/wire/retry.h"

namespace retort::engines::sglang {
namespace {

constexpr std::chrono::seconds kAbortTimeout{10};
constexpr const char* kTooMuch = "the server answers more than was asked for; is it SGLang?";

// Whether the server may still work on a request that ended so.
bool may_go_on(const std::exception_ptr& failed) {
  try {
    std::rethrow_exception(failed);
  } catch (const Error& error) {
    return is_absent(error) && status_of(error) == 0;
  } catch (const std::exception&) {
    return false;
  }
}

class Sglang final : public Engine {
 public:
  Sglang(const ExternalOptions& options, const std::string& url, const std::string& key)
      : options_(options), server_(options, url, key) {
    const WeightRoute via = options.weights.via;
    if (via != WeightRoute::kNone && via != WeightRoute::kFolder)
      throw Error(ErrorCode::kInvalidArgument,
                  "weights.via: SGLang takes weights as a folder alone");
  }

  Abilities abilities() const override {
    const auto served = server_.known();
    if (!served) return {};
    return {.draws = true,
            .scores = true,
            .max_top_k = served->vocab_rows,
            .seeds = served->server.deterministic};
  }

  Future<EngineState> state(Deadline deadline) override;
  Future<Drawn> draw(DrawRequest request, Deadline deadline) override;
  Future<Scored> score(ScoreRequest request, Deadline deadline) override;
  Future<Empty> load_weights(std::string path, Deadline deadline) override;

 private:
  void check_room(const Served& served, int64_t num_tokens) const;
  Future<Drawn> draw_from(const Served& served, DrawRequest asked, Deadline deadline);
  Future<Scored> score_from(const Served& served, const ScoreRequest& asked, Deadline deadline);
  Future<Drawn> aborting(Future<Drawn> drawn, const std::string& rid);
  void abort(const std::string& rid);
  Future<Empty> update(const std::string& path, const std::string& version, Deadline deadline);
  Future<Empty> flush(Deadline deadline);

  RequestName next_name();
  std::string weight_version() const;

  const ExternalOptions options_;
  RequestNames names_;
  mutable std::mutex mutex_;    // of weight_version_, never held over a call
  std::string weight_version_;  // as load_weights() called it; empty: nothing was loaded
  Server server_;               // the last member: its end runs what uses the others
};

RequestName Sglang::next_name() { return {.rid = names_.next(), .cache_salt = weight_version()}; }

std::string Sglang::weight_version() const {
  const std::lock_guard lock(mutex_);
  return weight_version_;
}

// A server that warms up, or is paused, is not ready.
Future<EngineState> Sglang::state(Deadline deadline) {
  http::Request request = server_.http().to(http::Method::kGet, "/ready");
  request.expected_type.clear();
  return map_error(server_.http().send(std::move(request), deadline), explained)
      .then([this, deadline](http::Response) { return server_.ask(deadline, Wait::kNot); })
      .then([](Served served) {
        return EngineState{.version = served.server.version,
                           .served_model = served.model.name,
                           .vocab_rows = served.vocab_rows,
                           .context_tokens = served.server.context_tokens};
      });
}

// SGLang cuts max_new_tokens to what its context leaves, without a word.
void Sglang::check_room(const Served& served, int64_t num_tokens) const {
  const int64_t context = served.server.context_tokens;
  if (num_tokens <= context) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the server takes " + std::to_string(context) + " tokens, and " +
                  std::to_string(num_tokens) +
                  " of prompt and completion are more; start it with a larger --context-length or "
                  "more memory for its cache, or ask for less")
      .with("url", server_.http().url().shown());
}

Future<Drawn> Sglang::draw(DrawRequest request, Deadline deadline) {
  return server_.served(deadline).then(
      [this, request = std::move(request), deadline](Served served) mutable {
        return draw_from(served, std::move(request), deadline);
      });
}

Future<Drawn> Sglang::draw_from(const Served& served, DrawRequest asked, Deadline deadline) {
  const auto num_given = static_cast<int64_t>(asked.prompt.size());
  check_room(served, num_given + asked.how.max_new_tokens);
  const RequestName name = next_name();
  Question question = draw_question(asked, name, served.vocab_rows);
  auto reader = std::make_shared<GenerateReader>(
      Expected{.rid = name.rid, .prompt_tokens = num_given, .weight_version = name.cache_salt},
      asked.how.max_new_tokens, nullptr);

  // A draw is not sent again when its connection breaks: its tokens are lost, and a second draw
  // need not be the same.
  http::Request request = server_.http().post_for_pieces(
      "/generate", std::move(question.body), question.body_bytes, kTooMuch,
      [reader](std::string_view piece) { reader->add(piece); });
  request.idempotent = false;
  auto read = [reader, asked = std::move(asked)](const http::Response&) {
    reader->end();
    return checked_drawn(std::move(reader->drawn), asked);
  };
  return aborting(map_error(server_.http().ask(std::move(request), deadline, Wait::kUntilDeadline,
                                               std::move(read)),
                            explained),
                  name.rid);
}

// `drawn`, whose request is aborted when nobody waits for it any more.
Future<Drawn> Sglang::aborting(Future<Drawn> drawn, const std::string& rid) {
  Promise<Drawn> promise;
  Future<Drawn> next = promise.future();
  promise.on_cancel([this, rid, cancel = drawn.canceller()] {
    cancel();
    abort(rid);
  });
  drawn.on_outcome([this, promise, rid](Outcome<Drawn> outcome) mutable {
    if (outcome.error && may_go_on(outcome.error)) abort(rid);
    promise.complete(std::move(outcome));
  });
  return next;
}

// Nobody waits for the answer: the server also notices that the connection of the request was
// closed.
void Sglang::abort(const std::string& rid) {
  const http::Url& url = server_.http().url();
  // An administrative request does not cross a network in the clear unless the options allow it.
  // This one is only a courtesy, so it is left out and not an error.
  if (!options_.allow_plain_admin && !url.tls && !is_loopback(url)) return;
  const nlohmann::json body = {{"rid", rid}, {"abort_all", false}};
  http::Request request = server_.http().post("/abort_request", body.dump());
  request.expected_type.clear();
  request.limits.attempt = kAbortTimeout;
  server_.http().send(std::move(request), Deadline::after(kAbortTimeout));
}

Future<Scored> Sglang::score(ScoreRequest request, Deadline deadline) {
  return retry_once_with(server_.served(deadline),
                         [this, request = std::move(request), deadline](const Served& served) {
                           return score_from(served, request, deadline);
                         });
}

Future<Scored> Sglang::score_from(const Served& served, const ScoreRequest& asked,
                                  Deadline deadline) {
  // The reader writes into the rows. One object holds both, so that neither outlives the other.
  struct Reading {
    Reading(const ScoreRequest& asked, int64_t vocab_rows, Expected expected)
        : rows(asked, vocab_rows), answer(std::move(expected), 0, &rows) {}
    InputRows rows;
    GenerateReader answer;
  };
  const RequestName name = next_name();
  Question question = score_question(asked, name, served.vocab_rows);
  const int64_t num_tokens = num_scored_tokens(asked);
  check_room(served, num_tokens);
  auto reading = std::make_shared<Reading>(
      asked, served.vocab_rows,
      Expected{.rid = name.rid, .prompt_tokens = num_tokens, .weight_version = name.cache_salt});

  http::Request request = server_.http().post_for_pieces(
      "/generate", std::move(question.body), question.body_bytes, kTooMuch,
      [reading](std::string_view piece) { reading->answer.add(piece); });
  request.idempotent = false;  // retry_once() asks with a reader and a name of its own
  const auto read = [reading](const http::Response&) {
    reading->answer.end();
    return reading->rows.take(reading->answer.flat_top());
  };
  return map_error(server_.http().ask(std::move(request), deadline, Wait::kUntilDeadline, read),
                   explained);
}

Future<Empty> Sglang::load_weights(std::string path, Deadline deadline) {
  // Each load has a name of its own, which the server repeats in its answers: one that names
  // another comes from weights that somebody else gave it. The steps stand in the order of what
  // they trust, and the last one is a score, so that whoever waits knows that the server computes
  // again.
  const std::string version = names_.next();
  return try_future([&] {
           refuse_plain_admin(server_.http().url(), options_.allow_plain_admin,
                              "/update_weights_from_disk");
           const WeightFolder whole(path);
           return update(path, version, deadline);
         })
      .then([this, deadline](Empty) { return flush(deadline); })
      .then([this, deadline](Empty) { return server_.model(deadline, Wait::kNot); })
      .then([this, path, version, deadline](ModelInfo model) {
        server_.http().reading([&] { return check_loaded(model, path, version); });
        {
          const std::lock_guard lock(mutex_);
          weight_version_ = version;
        }
        return state(deadline);
      })
      .then([this, deadline](EngineState) {
        return score({.token_ids = {0, 0}, .positions = {0}}, deadline);
      })
      .then([](Scored) { return Empty{}; });
}

Future<Empty> Sglang::update(const std::string& path, const std::string& version,
                             Deadline deadline) {
  http::Request request =
      server_.http().post("/update_weights_from_disk", update_question(path, version));
  request.limits.attempt = options_.load_timeout;
  request.idempotent = false;  // one that broke may still go on
  return server_.http().administer(std::move(request), deadline, check_updated, explained_admin);
}

Future<Empty> Sglang::flush(Deadline deadline) {
  http::Request request = server_.http().to(http::Method::kPost, "/flush_cache");
  request.expected_type.clear();
  return server_.http().administer(std::move(request), deadline, check_flushed, explained_admin);
}

}  // namespace

std::unique_ptr<Engine> make_sglang(const ExternalOptions& options, const std::string& url,
                                    const std::string& key) {
  return std::make_unique<Sglang>(options, url, key);
}

}  // namespace retort::engines::sglang
