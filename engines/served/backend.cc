#include "engines/served/backend.h"

#include <chrono>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "models/checkpoint/checkpoint.h"
#include "roles/generator/requests.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"

namespace retort::engines {
namespace {

constexpr std::chrono::milliseconds kStepWait{20};

// Builds the completion that a generator of ours would give. Its `logps` are those of the model's
// own distribution, its `sampling_logps` those of the distribution that the token was drawn from;
// each is filled in only if the engine's numbers mean just that. At temperature 1 and without
// truncation the two distributions are one.
models::Completion completion_of(Drawn drawn, const models::DrawOptions& how,
                                 DrawnMeaning meaning) {
  const double temperature = how.sampling.temperature;
  const bool whole = how.sampling.is_whole() && how.min_new_tokens == 0;
  const bool plain = temperature == 1 && whole;
  const bool of_model = plain || meaning == DrawnMeaning::kRaw;
  const bool of_draw =
      plain || meaning == DrawnMeaning::kProcessed || (meaning == DrawnMeaning::kTempered && whole);

  models::Completion completion;
  completion.token_ids = std::move(drawn.token_ids);
  completion.finish_reason = drawn.finish_reason;
  if (of_model) completion.logps = drawn.log_probs;
  if (temperature == 0)
    completion.sampling_logps.resize(completion.token_ids.size());  // certain
  else if (of_draw)
    completion.sampling_logps = std::move(drawn.log_probs);
  return completion;
}

}  // namespace

EngineBackend::EngineBackend(std::shared_ptr<Engine> engine, models::Decoder student,
                             models::Tokenizer tokenizer, WeightFiles files, Options options)
    : engine_(std::move(engine)),
      decoder_(std::move(student)),
      tokenizer_(std::move(tokenizer)),
      files_(std::move(files)),
      options_(std::move(options)),
      staging_(decoder_) {
  decoder_.set_requires_grad(false);
}

EngineBackend::~EngineBackend() {
  for (const auto& [place, open] : open_)
    open.cancel();
}

roles::GeneratorInfo EngineBackend::info() const {
  return {.weight_version = weight_version(),
          .committed_version = staging_.checked(),
          .vocab_rows = decoder_.config().vocab_size,
          .max_position_embeddings = decoder_.config().max_position_embeddings,
          .vocabulary_fingerprint = tokenizer_.vocabulary_fingerprint(),
          .parameters = roles::parameters_hash(decoder_, decoder_.lora()),
          .dtype = models::dtype_name(decoder_.dtype()),
          .slices = roles::weight_slices(decoder_)};
}

uint64_t EngineBackend::submit(const roles::GenerateRequest& request) {
  models::GenerationRequest all = roles::unpack_request(request);
  const uint64_t number = ++last_request_;
  for (size_t i = 0; i < all.sample_ids.size(); ++i) {
    const auto& prompt = all.prompts[i / static_cast<size_t>(all.num_generations)];
    DrawRequest draw{.prompt = prompt,
                     .how = all.draw,
                     .seed = random_bits(all.draw.sampling.seed, all.sample_ids[i],
                                         static_cast<uint64_t>(request.continues))};
    begin({number, static_cast<int64_t>(i)}, {.draw = std::move(draw), .cancel = {}});
  }
  return number;
}

void EngineBackend::begin(const Place& place, Open open) {
  const auto before = static_cast<int64_t>(open_.size());
  Future<Drawn> drawn = engine_->draw(open.draw, deadline_behind(before, options_.timeout));
  open.cancel = drawn.canceller();
  open_[place] = std::move(open);
  drawn.on_outcome([inbox = inbox_, place](Outcome<Drawn> outcome) {
    {
      std::lock_guard lock(inbox->mutex);
      inbox->ended.push_back({place.first, place.second, std::move(outcome)});
    }
    inbox->arrived.notify_one();
  });
}

bool EngineBackend::step() {
  if (open_.empty()) return false;
  std::vector<Ended> ended;
  {
    std::unique_lock lock(inbox_->mutex);
    // The outcomes are swapped out, because take() may begin a draw once more: if that one has
    // ended already, begin() puts its outcome into the inbox on this thread and locks it again.
    inbox_->arrived.wait_for(lock, kStepWait, [&] { return !inbox_->ended.empty(); });
    ended.swap(inbox_->ended);
  }
  for (Ended& one : ended)
    take(std::move(one));
  return true;
}

void EngineBackend::take(Ended ended) {
  const auto found = open_.find({ended.request, ended.index});
  if (found == open_.end()) return;  // it was cancelled
  Open open = std::move(found->second);
  open_.erase(found);

  if (!ended.outcome.error) {
    finished_.push_back({.request = ended.request,
                         .index = ended.index,
                         .completion = completion_of(std::move(*ended.outcome.value), open.draw.how,
                                                     options_.drawn)});
    return;
  }

  // A draw that broke on its way is drawn once more, with the same seed; nobody sees what the first
  // one may still do at the server. If the second breaks too, the engine is gone: the error leaves
  // step() and ends the backend.
  if (is_absent(ended.outcome.error)) {
    if (open.again) std::rethrow_exception(ended.outcome.error);
    open.again = true;
    return begin({ended.request, ended.index}, std::move(open));
  }
  // Any other error is the request's own. Its caller gets that error alone, so the other draws of
  // the request are cancelled and what they brought is dropped.
  give_up(ended.request);
  finished_.push_back({.request = ended.request, .error = ended.outcome.error});
}

void EngineBackend::give_up(uint64_t request) {
  // Places are ordered by request and then by index, so all open draws of a request are one range.
  const auto first = open_.lower_bound({request, 0}), last = open_.lower_bound({request + 1, 0});
  for (auto open = first; open != last; ++open)
    open->second.cancel();
  open_.erase(first, last);
  std::erase_if(finished_, [&](const auto& sample) { return sample.request == request; });
}

std::vector<roles::FinishedSample> EngineBackend::finished() {
  return std::exchange(finished_, {});
}

void EngineBackend::cancel(uint64_t request) { give_up(request); }

std::vector<std::vector<float>> EngineBackend::score(const roles::ForwardRequest& request) {
  std::vector<std::vector<int32_t>> rows =
      roles::split_rows(request.input_ids, request.cu_seqlens, "generator.score");
  const auto before = static_cast<int64_t>(open_.size() + rows.size());
  const Deadline deadline = deadline_behind(before, options_.timeout);

  // All rows are asked for at once, so that the engine can batch them. A row of one token has no
  // position to score: its future stays invalid and its scores empty.
  std::vector<Future<Scored>> answers;
  for (auto& row : rows) {
    ScoreRequest asked = score_all(std::move(row));
    answers.push_back(asked.positions.empty() ? Future<Scored>()
                                              : engine_->score(std::move(asked), deadline));
  }
  std::vector<std::vector<float>> scores;
  for (auto& answer : answers)
    scores.push_back(answer.valid() ? answer.get().given : std::vector<float>());
  return scores;
}

void EngineBackend::stage(roles::WeightBucket bucket, const std::string& from) {
  staging_.add(std::move(bucket), from);
}

void EngineBackend::forget_staged(const std::function<std::set<std::string>()>& connected) {
  staging_.forget_lost(connected);
}

uint64_t EngineBackend::check(const roles::CommitWeights& commit) {
  return roles::weights_checksum(std::vector<uint64_t>{staging_.check(commit)});
}

void EngineBackend::uncheck() { staging_.uncheck(); }

void EngineBackend::apply() {
  // The new weights go into the decoder first. Their files are written from it, and it is what the
  // engine is compared with once it has loaded them.
  staging_.apply();
  const uint64_t version = weight_version();
  const std::string path = files_.write(decoder_, version);
  const Deadline deadline = Deadline::after(options_.load_timeout);
  if (options_.load)
    options_.load(path, deadline);
  else
    engine_->load_weights(path, deadline).get();

  // An engine that says it has loaded may still answer from older weights, so its numbers are
  // compared with the decoder's. The receipt is handed on before it is judged, so that a refused
  // one is recorded as well.
  const Receipt receipt = check_weights(*engine_, decoder_, version, options_.canaries,
                                        Deadline::after(options_.timeout));
  if (options_.on_receipt) options_.on_receipt(receipt);
  if (!receipt.accepted())
    throw Error(ErrorCode::kMismatch,
                "the engine was told to load new weights from " + path +
                    ", but what it computes is not what the student computes with them: a cache "
                    "of older weights, a file that it did not read, or other arithmetic "
                    "(weights.canary_tokens sequences; raise external.tolerance only if the "
                    "difference is its rounding)")
        .with("version", version)
        .with("largest_difference", receipt.largest)
        .with("tolerance", receipt.tolerance)
        .with("mean_difference", receipt.mean)
        .with("mean_tolerance", receipt.mean_tolerance);
  RETORT_LOG(kInfo) << "weights " << version << " are in use: " << receipt.tokens
                    << " log-probabilities differ by at most " << receipt.largest;
}

}  // namespace retort::engines
