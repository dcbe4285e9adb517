#include "engines/kserve/engine.h"

#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "engines/kserve/answer_checks.h"
#include "engines/kserve/requests.h"
#include "engines/kserve/server.h"

namespace retort::engines::kserve {
namespace {

// The parameter of a model's configuration that says where its weights lie.
constexpr std::string_view kWeights = "weights";

using Tensors = std::map<std::string, at::Tensor>;

class KserveEngine final : public Engine {
 public:
  KserveEngine(const ExternalOptions& options, http::Url url, const std::string& key)
      : follows_(options.weights.via == WeightRoute::kRepository),
        server_(options, std::move(url), key) {}

  Abilities abilities() const override {
    const auto model = known();
    return model ? model->abilities : Abilities{};
  }

  Future<EngineState> state(Deadline deadline) override {
    return named(server_.look(deadline).then([this](ServedModel model) {
      const EngineState state = model.state;
      keep(std::move(model));
      return state;
    }));
  }

  Future<Scored> score(ScoreRequest request, Deadline deadline) override;
  Future<at::Tensor> hidden_states(ScoreRequest request, Deadline deadline) override;
  Future<double> reward(RewardRequest request, Deadline deadline) override;
  Future<Empty> load_weights(std::string path, Deadline deadline) override;

 private:
  using Model = std::shared_ptr<const ServedModel>;

  Model known() const {
    const std::lock_guard lock(mutex_);
    return model_;
  }
  void keep(ServedModel model) {
    auto shared = std::make_shared<const ServedModel>(std::move(model));
    const std::lock_guard lock(mutex_);
    model_ = std::move(shared);
  }
  // What the server said of its model; kInvalidArgument before it was asked.
  Model asked() const {
    Model model = known();
    if (model) return model;
    throw Error(ErrorCode::kInvalidArgument,
                "what the model takes and gives is not known yet; wait for state() first");
  }

  // Sends what `make_question` makes of the model, and gives `read` the tensors that come back. The
  // model is the same for both, even if another one is looked at meanwhile.
  template <class MakeQuestion, class Read>
  auto ask(MakeQuestion make_question, Read read, Deadline deadline)
      -> Future<std::invoke_result_t<Read, const ServedModel&, const Tensors&>>;
  // Errors of `future` with the server's address, and none of them thrown.
  template <class T>
  Future<T> named(Future<T> future) const;

  const bool follows_;
  mutable std::mutex mutex_;
  Model model_;
  std::atomic<uint64_t> num_questions_{0};
  Server server_;  // its client's thread uses all of the above: destroyed first
};

template <class T>
Future<T> failed(std::exception_ptr error) {
  Promise<T> promise;
  promise.set_error(std::move(error));
  return promise.future();
}

// `error` with the address, unless it names one already.
std::exception_ptr at_address(std::exception_ptr error, const http::Url& url) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    for (const auto& [key, value] : known.context())
      if (key == "url") return error;
    return std::make_exception_ptr(known.with("url", url.shown()));
  } catch (...) {
    return error;
  }
}

template <class T>
Future<T> KserveEngine::named(Future<T> future) const {
  Promise<T> promise;
  auto result = promise.future();
  promise.on_cancel(future.canceller());
  future.on_outcome([promise, url = server_.url()](Outcome<T> outcome) mutable {
    if (outcome.error) outcome.error = at_address(outcome.error, url);
    promise.complete(std::move(outcome));
  });
  return result;
}

template <class MakeQuestion, class Read>
auto KserveEngine::ask(MakeQuestion make_question, Read read, Deadline deadline)
    -> Future<std::invoke_result_t<Read, const ServedModel&, const Tensors&>> {
  using Result = std::invoke_result_t<Read, const ServedModel&, const Tensors&>;
  try {
    const Model model = asked();
    auto question = std::make_shared<InferQuestion>(make_question(*model));
    question->id = "retort-" + std::to_string(++num_questions_);
    return named(server_.infer(infer_request(*question), question->model, deadline)
                     .then([model, question, read](http::Response response) {
                       const Tensors there = read_infer_answer(*question, std::move(response));
                       return read(*model, there);
                     }));
  } catch (...) {
    return failed<Result>(at_address(std::current_exception(), server_.url()));
  }
}

// The tensor of `answer` that is ours called `name`.
const at::Tensor& tensor(const ServedModel& model, const Tensors& answer, std::string_view name) {
  return answer.at(model.tensors.find(name)->second.name);
}

Future<Scored> KserveEngine::score(ScoreRequest request, Deadline deadline) {
  const int64_t k = request.top_k;
  return ask([&](const ServedModel& model) { return score_question(model, std::move(request)); },
             [k](const ServedModel& model, const Tensors& answer) {
               Scored scored;
               if (model.abilities.scores) {
                 const at::Tensor& given = tensor(model, answer, kGivenLogProbs);
                 check_log_probs(std::string(kGivenLogProbs), given);
                 const auto* begin = given.const_data_ptr<float>();
                 scored.given.assign(begin, begin + given.numel());
               }
               if (k == 0) return scored;

               // A model whose K is fixed gives more entries than were asked for.
               const at::Tensor& ids = tensor(model, answer, kTopKIds);
               const at::Tensor& log_probs = tensor(model, answer, kTopKLogProbs);
               check_top_k(ids, log_probs, model.state.vocab_rows);
               scored.ids = ids.narrow(1, 0, k).contiguous();
               scored.log_probs = log_probs.narrow(1, 0, k).contiguous();
               return scored;
             },
             deadline);
}

Future<at::Tensor> KserveEngine::hidden_states(ScoreRequest request, Deadline deadline) {
  return ask([&](const ServedModel& model) { return hidden_question(model, std::move(request)); },
             [](const ServedModel& model, const Tensors& answer) {
               const at::Tensor& states = tensor(model, answer, kHiddenStates);
               check_finite(std::string(kHiddenStates), states);
               return states;
             },
             deadline);
}

Future<double> KserveEngine::reward(RewardRequest request, Deadline deadline) {
  const int64_t label = request.label;
  return ask([&](const ServedModel& model) { return reward_question(model, std::move(request)); },
             [label](const ServedModel& model, const Tensors& answer) {
               const at::Tensor& scores = tensor(model, answer, kScores);
               check_finite(std::string(kScores), scores);
               return double{scores.const_data_ptr<float>()[label]};
             },
             deadline);
}

// The configuration of `model` with weights at `path`.
Json configuration_with(const ServedModel& model, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                "model " + in_quotes(model.state.served_model) + ": " + why);
  };
  if (!model.configuration)
    refuse(
        "the server does not tell its configuration, which says where "
        "its weights lie");
  Json configuration = *model.configuration;
  const auto parameters = configuration.find("parameters");
  if (parameters == configuration.end() || !parameters->is_object() ||
      !parameters->contains(kWeights))
    refuse("its configuration has no parameter weights, which would say where its weights lie");
  (*parameters)[std::string(kWeights)] = {{"string_value", path}};
  return configuration;
}

Future<Empty> KserveEngine::load_weights(std::string path, Deadline deadline) {
  try {
    if (!follows_)
      throw Error(ErrorCode::kInvalidArgument,
                  "weights.via: expected repository, to load other weights");
    if (!std::filesystem::path(path).is_absolute())
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": expected an absolute path; the server stands in a folder of its own");
    const Model model = asked();
    return named(
        server_.reload(model->state.served_model, configuration_with(*model, path), deadline)
            .then([this, deadline](Empty) { return server_.look(deadline); })
            .then([this](ServedModel loaded) { keep(std::move(loaded)); }));
  } catch (...) {
    return failed<Empty>(at_address(std::current_exception(), server_.url()));
  }
}

}  // namespace

std::unique_ptr<Engine> make_kserve(const ExternalOptions& options, const std::string& url,
                                    const std::string& key) {
  check_tensor_names(options.tensors);
  http::Url address = http::parse_url(url);
  const WeightRoute via = options.weights.via;
  if (via != WeightRoute::kNone && via != WeightRoute::kRepository)
    throw Error(ErrorCode::kInvalidArgument, "weights.via: " + std::string(enum_name(via)) +
                                                 " is not for engine: kserve; expected none or "
                                                 "repository");
  return std::make_unique<KserveEngine>(options, std::move(address), key);
}

}  // namespace retort::engines::kserve
