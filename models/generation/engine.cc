#include "models/generation/engine.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "models/generation/request_checks.h"
#include "models/generation/sampler.h"
#include "models/generation/scheduler.h"
#include "models/generation/stop_text.h"
#include "models/ops/packed.h"

namespace retort::models {
namespace {

int64_t count_blocks(const Decoder& decoder, const EngineOptions& options) {
  options.validate();
  if (options.num_blocks > 0) return options.num_blocks;

  // A block is as large as its keys and values on this rank, which depend on the model and on where
  // it computes.
  const int64_t block_bytes = StepModel::kv_bytes(decoder, 1, options.block_tokens);
  const int64_t blocks = options.kv_cache_bytes / block_bytes;
  if (blocks < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "generation: kv_cache_bytes must hold at least one block of " +
                    std::to_string(block_bytes) + " bytes; raise it or lower block_tokens")
        .with("kv_cache_bytes", options.kv_cache_bytes);
  }
  return blocks;
}

// Lists the ids that end a completion and can be drawn at all, each once. They are barred for the
// first min_new_tokens, and the sampler expects distinct ids below num_ids.
std::vector<int32_t> drawable_ends(const DrawOptions& draw, int64_t vocab_size) {
  if (draw.min_new_tokens == 0) return {};
  if (draw.sampling.num_ids > 0) vocab_size = std::min(vocab_size, draw.sampling.num_ids);
  std::vector<int32_t> ids;
  for (const int64_t id : draw.end_ids())
    if (id >= 0 && id < vocab_size) ids.push_back(static_cast<int32_t>(id));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void count_token(std::vector<TokenCount>& counts, int32_t token) {
  const auto place = std::lower_bound(counts.begin(), counts.end(), token,
                                      [](const TokenCount& a, int32_t id) { return a.id < id; });
  if (place != counts.end() && place->id == token)
    ++place->count;
  else
    counts.insert(place, {.id = token, .count = 1});
}

// Tells whether a stop string ends in the newest token. A token may be one byte of a character, or
// no text at all at the beginning, so a few more tokens are read than the longest string has bytes.
// A string that ends within the first min_new_tokens does not count.
bool contains_stop(const Sequence& sequence, const Detokenizer& detokenizer) {
  const DrawOptions& draw = sequence.group->request->request.draw;
  const std::vector<int32_t>& ids = sequence.result.token_ids;
  const auto least = static_cast<size_t>(draw.min_new_tokens);
  if (draw.stop.empty() || ids.size() <= least) return false;
  size_t longest = 0;
  for (const std::string& stop : draw.stop)
    longest = std::max(longest, stop.size());
  const size_t count = std::min(ids.size(), longest + 8);
  const auto newest = std::span(ids).last(count);

  const size_t before = ids.size() - count;
  const size_t early = before < least ? detokenizer(newest.first(least - before)).size() : 0;
  return find_stop(detokenizer(newest), draw.stop, early) != std::string::npos;
}

// Returns why the sequence ends with its newest token, or nothing when it goes on. An end token
// ranks before a stop token, a stop token before a stop string, and a stop string before the
// length. `detokenizer` is used for stop strings only.
std::optional<FinishReason> finish_reason_of(const Sequence& sequence,
                                             const Detokenizer& detokenizer) {
  const DrawOptions& draw = sequence.group->request->request.draw;
  const Completion& result = sequence.result;
  const auto is_newest = [&](const std::vector<int64_t>& ids) {
    return std::find(ids.begin(), ids.end(), result.token_ids.back()) != ids.end();
  };
  if (is_newest(draw.eos_token_ids)) return FinishReason::kEos;
  if (is_newest(draw.stop_token_ids)) return FinishReason::kStop;
  if (contains_stop(sequence, detokenizer)) return FinishReason::kStop;
  if (static_cast<int64_t>(result.token_ids.size()) >= sequence.max_new_tokens)
    return FinishReason::kLength;
  return std::nullopt;
}

// A sequence that takes its next token from row `row` of the states. All are in ascending order.
struct Draw {
  Sequence* sequence;
  int64_t row;
  Choice choice;
};

}  // namespace

struct Engine::Impl {
  Impl(const Decoder& d, EngineOptions o, Detokenizer t)
      : decoder(&d),
        options(o),
        detokenizer(std::move(t)),
        pool(count_blocks(d, options), options.block_tokens, options.share_prefixes),
        model(StepModel::make(d, pool.num_blocks(), options.block_tokens)),
        scheduler(options, pool) {
    stats.num_blocks = pool.num_blocks();
    stats.kv_bytes = model->kv_bytes();
  }

  void step();
  void collect_draws();
  DrawHistory history_of(const Draw& draw) const;
  bool is_drawn_by_model(const Draw& draw) const;
  void choose();
  at::Tensor states_of(std::span<Draw* const> some) const;
  void choose_here();
  void choose_here(Draw& draw, int64_t first, SamplerScratch& mine) const;
  void choose_by_model();
  void accept(const Draw& draw);
  void deliver(RequestState& request, size_t completion, Completion result);
  void cancel(RequestState& request);

  const Decoder* decoder;
  EngineOptions options;
  Detokenizer detokenizer;
  BlockPool pool;
  std::unique_ptr<StepModel> model;
  Scheduler scheduler;
  EngineStats stats;
  std::map<uint64_t, std::unique_ptr<RequestState>> requests;
  uint64_t next_id = 1;
  bool stepping = false;
  bool said_what_is_drawn_here = false;
  // The current step alone uses these:
  std::vector<int32_t> ids;
  std::vector<StepSpan> spans;
  std::vector<Draw> draws;
  std::vector<Draw*> drawn_by_model, drawn_here;  // of `draws`, in their order
  at::Tensor states;  // [draws' rows, hidden_size], where the model computes
  std::vector<float> logits;
  std::vector<SamplerScratch> scratch;
  std::vector<RowDraw> row_draws;
  std::vector<Choice> choices;
};

// Collects the states of all last tokens, and the sequences that draw from them.
void Engine::Impl::collect_draws() {
  draws.clear();
  std::vector<at::Tensor> drawn_from;
  at::Tensor last_states;
  if (!scheduler.pieces().empty()) last_states = model->final_states();

  // A running sequence draws from its last token. A prompt's last state waits for its samples. A
  // plan has its sequences before its prompts, so that their states lie side by side.
  int64_t next = 0;
  for (const Piece& piece : scheduler.pieces()) {
    if (!piece.last) continue;
    if (piece.sequence != nullptr) {
      RETORT_CHECK(static_cast<int64_t>(draws.size()) == next) << "a sequence behind a prompt";
      draws.push_back({piece.sequence, next, {}});
    } else {
      piece.group->state = last_states.narrow(0, next, 1);
    }
    ++next;
  }
  auto num_rows = static_cast<int64_t>(draws.size());
  if (num_rows > 0) drawn_from.push_back(last_states.narrow(0, 0, num_rows));

  // The samples that start now draw their first token. Those of one prompt share a row, so that its
  // logits are formed once. A state is given up once no sample waits for it, because it may be a
  // view of those of a whole step.
  const SampleGroup* group = nullptr;
  for (Sequence* sequence :
       scheduler.start_samples([&](int32_t from, int32_t to) { model->copy_block(from, to); })) {
    if (sequence->group != group) {
      group = sequence->group;
      drawn_from.push_back(group->state);
      ++num_rows;
      if (group->pending() == 0) sequence->group->state.reset();
    }
    draws.push_back({sequence, num_rows - 1, {}});
  }
  states = drawn_from.size() > 1 ? at::cat(drawn_from)
                                 : (drawn_from.empty() ? at::Tensor() : drawn_from.front());
}

// What the draw looks at besides the logits.
DrawHistory Engine::Impl::history_of(const Draw& draw) const {
  const Sequence& sequence = *draw.sequence;
  const RequestState& request = *sequence.group->request;
  const auto length = static_cast<int64_t>(sequence.result.token_ids.size());
  DrawHistory history{.seen = sequence.seen, .generated = sequence.generated, .barred = {}};
  if (length < request.request.draw.min_new_tokens) history.barred = request.end_ids;
  return history;
}

bool Engine::Impl::is_drawn_by_model(const Draw& draw) const {
  return model->has_draw() &&
         needs_row_alone(draw.sequence->group->request->request.draw.sampling) &&
         history_of(draw).barred.empty();
}

// Chooses a token for every draw. Those that the model draws go together, and so do those that the
// host draws, whatever order they have: each place has one product with the head.
void Engine::Impl::choose() {
  drawn_by_model.clear();
  drawn_here.clear();
  for (Draw& draw : draws)
    (is_drawn_by_model(draw) ? drawn_by_model : drawn_here).push_back(&draw);
  if (!drawn_by_model.empty()) choose_by_model();
  if (!drawn_here.empty()) choose_here();
}

// Returns the states that these draws, in the order of their rows, take their tokens from. Their
// rows are counted among those from then on.
at::Tensor Engine::Impl::states_of(std::span<Draw* const> some) const {
  std::vector<int64_t> rows;
  for (Draw* draw : some) {
    if (rows.empty() || rows.back() != draw->row) rows.push_back(draw->row);
    draw->row = std::ssize(rows) - 1;
  }
  const int64_t count = std::ssize(rows);
  if (rows.back() - rows.front() + 1 == count) return states.narrow(0, rows.front(), count);
  return rows_at(states, at::tensor(rows, at::kLong));
}

void Engine::Impl::choose_by_model() {
  const at::Tensor drawn_from = states_of(drawn_by_model);
  row_draws.clear();
  for (const Draw* draw : drawn_by_model) {
    const Sequence& sequence = *draw->sequence;
    row_draws.push_back(row_draw(sequence.group->request->request.draw.sampling, sequence.sample_id,
                                 sequence.tokens.size(), draw->row));
  }

  choices.resize(row_draws.size());
  model->draw(drawn_from, row_draws, choices.data());
  for (size_t i = 0; i < choices.size(); ++i) {
    const Sequence& sequence = *drawn_by_model[i]->sequence;
    if (choices[i].token < 0) throw not_finite(sequence.sample_id, sequence.tokens.size());
    drawn_by_model[i]->choice = choices[i];
  }
}

void Engine::Impl::choose_here() {
  // Logits are formed for as many rows at once as a buffer of bounded size takes.
  constexpr int64_t kLogits = int64_t{1} << 24;  // fp32 values
  const at::Tensor drawn_from = states_of(drawn_here);
  const int64_t vocab_size = model->config().vocab_size;
  const int64_t end_row = drawn_from.size(0);
  const int64_t at_once = std::max<int64_t>(1, kLogits / vocab_size);
  scratch.resize(static_cast<size_t>(model->pool().threads()));
  logits.resize(static_cast<size_t>(std::min(end_row, at_once) * vocab_size));

  // Each batch of rows serves a contiguous run of the draws.
  size_t next = 0;
  for (int64_t first = 0; first < end_row; first += at_once) {
    const int64_t end = std::min(end_row, first + at_once);
    model->logits(drawn_from.narrow(0, first, end - first), logits.data());
    const size_t begin_draw = next;
    while (next < drawn_here.size() && drawn_here[next]->row < end)
      ++next;
    model->pool().run(static_cast<int64_t>(next - begin_draw), 1,
                      [&](int64_t begin, int64_t stop, int thread) {
                        for (int64_t i = begin; i < stop; ++i)
                          choose_here(*drawn_here[begin_draw + static_cast<size_t>(i)], first,
                                      scratch[static_cast<size_t>(thread)]);
                      });
  }
}

// Chooses from the row of `logits` that belongs to the draw. The first row of `logits` is row
// `first` of the states that the host draws from.
void Engine::Impl::choose_here(Draw& draw, int64_t first, SamplerScratch& mine) const {
  const int64_t vocab_size = model->config().vocab_size;
  const Sequence& sequence = *draw.sequence;
  draw.choice = choose_token(logits.data() + (draw.row - first) * vocab_size, vocab_size,
                             sequence.group->request->request.draw.sampling, history_of(draw),
                             sequence.sample_id, sequence.tokens.size(), mine);
}

void Engine::Impl::accept(const Draw& draw) {
  Sequence& sequence = *draw.sequence;
  RequestState& request = *sequence.group->request;

  // The completion records the token, and the histories that the penalties look at grow with it.
  const int32_t token = draw.choice.token;
  sequence.tokens.push_back(token);
  sequence.result.token_ids.push_back(token);
  sequence.result.logps.push_back(draw.choice.logp);
  sequence.result.sampling_logps.push_back(draw.choice.sampling_logp);
  if (request.request.draw.sampling.repetition_penalty != 1.0) {
    const auto place = std::lower_bound(sequence.seen.begin(), sequence.seen.end(), token);
    if (place == sequence.seen.end() || *place != token) sequence.seen.insert(place, token);
  }
  if (request.request.draw.sampling.penalises_generated()) count_token(sequence.generated, token);
  if (request.callbacks.on_token)
    request.callbacks.on_token(sequence.completion, token, draw.choice.logp);

  // on_token may have cancelled this very request. It is delivered at the end of the step, because
  // later draws of this step may still point to its sequences.
  if (request.cancelled) return;
  const std::optional<FinishReason> reason = finish_reason_of(sequence, detokenizer);
  if (!reason) return;
  sequence.result.finish_reason = *reason;

  // finish() destroys the sequence, so its result is moved out first. Its blocks are free before
  // the callback runs.
  const size_t completion = sequence.completion;
  Completion result = std::move(sequence.result);
  scheduler.finish(sequence);
  deliver(request, completion, std::move(result));
  if (request.unfinished == 0) scheduler.remove(request);
}

void Engine::Impl::deliver(RequestState& request, size_t completion, Completion result) {
  request.completions[completion] = std::move(result);
  request.done[completion] = true;
  --request.unfinished;
  if (request.callbacks.on_completion)
    request.callbacks.on_completion(completion, request.completions[completion]);
}

void Engine::Impl::cancel(RequestState& request) {
  // remove() destroys the sequences, so their tokens are saved first. A sample that never started
  // is delivered without tokens.
  for (Sequence* sequence : scheduler.sequences_of(request))
    request.completions[sequence->completion] = std::move(sequence->result);
  scheduler.remove(request);
  for (size_t i = 0; i < request.completions.size(); ++i) {
    if (request.done[i]) continue;
    Completion result = std::move(request.completions[i]);
    result.finish_reason = FinishReason::kCancelled;
    deliver(request, i, std::move(result));
  }
}

void Engine::Impl::step() {
  // The forward computes keys, values and states of the rows that are due, `ids` and `spans`. Both
  // are empty in a step that only starts samples of prompts computed before, for which no place was
  // free until now.
  scheduler.plan(ids, spans);
  stats.peak_used_blocks = std::max(stats.peak_used_blocks, pool.used());
  if (!ids.empty()) {
    model->forward(ids, spans);
    ++stats.steps;
    stats.rows += static_cast<int64_t>(ids.size());
  }
  scheduler.mark_computed();

  // Every sequence that is computed up to its last token draws the next one.
  collect_draws();
  RETORT_CHECK(!ids.empty() || !draws.empty())
      << "nothing can be computed, and the engine is not idle";
  stats.peak_used_blocks = std::max(stats.peak_used_blocks, pool.used());
  choose();
  for (const Draw& draw : draws)
    accept(draw);

  // Requests that a callback cancelled end here, where no draw points to their sequences any more.
  // They are gathered first, because the callbacks of cancel() may submit new requests.
  std::vector<RequestState*> cancelled;
  for (const auto& [id, request] : requests) {
    if (request->cancelled && request->unfinished > 0) cancelled.push_back(request.get());
  }
  for (RequestState* request : cancelled)
    cancel(*request);
}

Engine::Engine(const Decoder& decoder, EngineOptions options, Detokenizer detokenizer)
    : impl_(std::make_unique<Impl>(decoder, options, std::move(detokenizer))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

uint64_t Engine::submit(GenerationRequest request, GenerationCallbacks callbacks) {
  check_request(request, impl_->model->config(), impl_->options, impl_->pool.num_blocks(),
                static_cast<bool>(impl_->detokenizer));

  // Once, as it may cost much of a step: logits are copied, and the host draws.
  const DrawOptions& draw = request.draw;
  if (impl_->model->has_draw() && !impl_->said_what_is_drawn_here &&
      !(needs_row_alone(draw.sampling) && draw.min_new_tokens == 0)) {
    impl_->said_what_is_drawn_here = true;
    RETORT_LOG(kInfo)
        << "generation: top_k, top_p, typical_p, penalties and min_new_tokens draw on "
           "the host, to which the logits of each token come; temperature and min_p "
           "draw on the device";
  }

  // The state keeps one address, because its groups and the scheduler point to it.
  auto state = std::make_unique<RequestState>();
  state->id = impl_->next_id++;
  state->request = std::move(request);
  state->end_ids = drawable_ends(state->request.draw, impl_->model->config().vocab_size);
  state->callbacks = std::move(callbacks);
  state->groups.resize(state->request.prompts.size());
  for (size_t i = 0; i < state->groups.size(); ++i) {
    state->groups[i].request = state.get();
    state->groups[i].prompt = i;
  }
  state->unfinished = static_cast<int64_t>(state->groups.size()) * state->request.num_generations;
  state->completions.resize(static_cast<size_t>(state->unfinished));
  state->done.resize(state->completions.size());
  impl_->scheduler.add(*state);
  const uint64_t id = state->id;
  // The result stays in `requests` until take(), long after the scheduler has removed it.
  impl_->requests.emplace(id, std::move(state));
  return id;
}

bool Engine::idle() const { return impl_->scheduler.idle(); }

bool Engine::step() {
  RETORT_CHECK(!impl_->stepping) << "step() inside a callback";
  if (idle()) return false;
  // Callbacks run inside the step; `stepping` makes their cancel() wait for its end, and must be
  // false again if one throws.
  impl_->stepping = true;
  try {
    impl_->step();
  } catch (...) {
    impl_->stepping = false;
    throw;
  }
  impl_->stepping = false;
  return true;
}

bool Engine::finished(uint64_t id) const {
  const auto found = impl_->requests.find(id);
  return found != impl_->requests.end() && found->second->unfinished == 0;
}

bool Engine::cancel(uint64_t id) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end() || found->second->unfinished == 0) return false;
  found->second->cancelled = true;
  if (!impl_->stepping) impl_->cancel(*found->second);
  return true;
}

std::vector<Completion> Engine::take(uint64_t id) {
  if (!finished(id))
    throw Error(ErrorCode::kInvalidArgument, "generation: no finished request has this number")
        .with("request", id);
  const auto found = impl_->requests.find(id);
  RETORT_CHECK(!impl_->stepping) << "take() inside a callback";
  std::vector<Completion> completions = std::move(found->second->completions);
  impl_->requests.erase(found);
  return completions;
}

std::vector<Completion> Engine::run(GenerationRequest request, GenerationCallbacks callbacks) {
  const uint64_t id = submit(std::move(request), std::move(callbacks));
  while (!finished(id))
    step();
  return take(id);
}

void Engine::weights_changed() {
  if (!idle()) {
    throw Error(
        ErrorCode::kUnavailable,
        "generation: the weights may change only when no sequence is in flight; step until idle");
  }
  // Cached keys and values come from the old weights, so no later prompt may take them over.
  impl_->pool.forget();
  impl_->model->bind(*impl_->decoder);
}

EngineStats Engine::stats() const {
  EngineStats stats = impl_->stats;
  stats.used_blocks = impl_->pool.used();
  stats.cached_blocks = impl_->pool.cached();
  stats.reused_tokens = impl_->scheduler.reused_tokens();
  stats.preemptions = impl_->scheduler.preemptions();
  return stats;
}

const EngineOptions& Engine::options() const { return impl_->options; }

}  // namespace retort::models
