// A reward that a service computes: one POST for each batch.
#include <cstdint>
#include <utility>

#include "base/deadline.h"
#include "http/client.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr uint64_t kMaxBodyBytes = uint64_t{64} << 20;

// A busy service is asked again until `timeout`, which is that of the whole batch, so a batch may
// arrive twice (docs/rewards.md).
http::Request request_to(const http::Url& url, std::string body, Duration timeout) {
  http::Request request{.url = url, .expected_type = "", .idempotent = true};
  request.body.push_back(http::piece_of(std::move(body)));
  request.limits = {.attempt = timeout, .idle = timeout, .body_bytes = kMaxBodyBytes};
  request.limits.body_advice = "send fewer completions at once";
  request.patience.total = timeout;
  return request;
}

class Http final : public Scorer {
 public:
  Http(std::string name, const RewardOptions& options)
      : name_(std::move(name)),
        url_(http::parse_url(*options.url)),
        timeout_(options.timeout.value_or(kDefaultTimeout)),
        // A connection that is kept would block a server with one thread for everybody else, so
        // none is.
        client_({.connect_timeout = timeout_, .keep_idle = Duration(0)}) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    Json list = Json::array();
    for (const RewardInput& input : inputs)
      list.push_back(to_json(input));
    return read_scores(post(dump(Json{{"inputs", std::move(list)}}), inputs.size()), inputs.size());
  }

 private:
  [[noreturn]] void failed(ErrorCode code, const std::string& what) const {
    fail(code, name_, url_.shown() + ": " + what);
  }

  // An error on the way names the reward and its address.
  http::Response post(std::string body, size_t count) {
    try {
      return client_.send(request_to(url_, std::move(body), timeout_), Deadline::after(timeout_))
          .get();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) failed(error.code(), error.message());
      failed(ErrorCode::kTimeout, "no complete answer to " + std::to_string(count) +
                                      " completions after " + format_duration(timeout_) +
                                      " (timeout): " + error.message());
    }
  }

  Scores read_scores(const http::Response& response, size_t count) const {
    const std::string& body = response.body;
    if (response.status != 200)
      failed(ErrorCode::kUnavailable,
             "status " + std::to_string(response.status) + " instead of 200: " + excerpt(body));
    const Json answer = Json::parse(body, nullptr, false);
    const auto refuse = [&](const std::string& why) -> void {
      failed(ErrorCode::kCorrupt,
             why + "; expected {\"scores\": [NUMBER or null, ...]}: " + excerpt(body));
    };
    if (!answer.is_object() || !answer.contains("scores") || !answer["scores"].is_array())
      refuse("the answer has no list of scores");

    // Scores are matched to completions by their order alone, so their number must fit.
    const Json& list = answer["scores"];
    if (list.size() != count)
      refuse("the answer has " + std::to_string(list.size()) + " scores for " +
             std::to_string(count) + " completions");
    Scores scores(count);
    std::string why;
    for (size_t i = 0; i < count; ++i)
      if (!read_score(list[i], scores[i], why)) refuse(why);
    return scores;
  }

  std::string name_;
  http::Url url_;
  Duration timeout_;
  http::Client client_;
};

}  // namespace

std::unique_ptr<Scorer> make_http(std::string name, const RewardOptions& options) {
  return std::make_unique<Http>(std::move(name), options);
}

}  // namespace retort::rewards::detail
