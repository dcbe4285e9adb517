// What the next step computes. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "models/generation/block_pool.h"
#include "models/generation/engine.h"
#include "models/generation/sampler.h"
#include "models/generation/step_model.h"

namespace retort::models {

struct RequestState;

// The samples of one prompt. The prompt is computed once; its blocks and the state of its last
// token are kept until all samples have started.
struct SampleGroup {
  RequestState* request = nullptr;
  size_t prompt = 0;     // its number in the request
  int64_t started = 0;   // samples that run, or have run
  int64_t reserved = 0;  // places kept free for its samples while the prompt is computed
  int64_t reused = 0;    // tokens of the prompt that were in the cache when it began
  bool ready = false;    // the prompt is computed
  CachedTokens cached;
  at::Tensor state;  // [1, H], where the model computes

  const std::vector<int32_t>& tokens() const;
  int64_t pending() const;  // samples that have not started
  bool has_blocks() const { return !cached.table.empty(); }
};

struct Sequence {
  SampleGroup* group = nullptr;
  size_t completion = 0;  // its number in the request
  uint64_t sample_id = 0;
  int64_t max_new_tokens = 0;
  std::vector<int32_t> tokens;  // prompt and completion
  std::vector<int32_t> seen;    // each of their ids once, sorted, if there is a repetition penalty
  // of the completion, sorted by id, if there is a penalty of it
  std::vector<TokenCount> generated;
  CachedTokens cached;
  Completion result;
};

struct RequestState {
  uint64_t id = 0;
  GenerationRequest request;
  std::vector<int32_t> end_ids;  // not drawn in the first min_new_tokens, if there is such a number
  GenerationCallbacks callbacks;
  std::vector<SampleGroup> groups;
  size_t next_group = 0;
  std::vector<Completion> completions;
  std::vector<bool> done;
  int64_t unfinished = 0;
  bool cancelled = false;
};

// Rows of one sequence or of one prompt in a step: either `sequence` or `group` is set.
struct Piece {
  Sequence* sequence = nullptr;
  SampleGroup* group = nullptr;
  int64_t first_row = 0;
  int64_t count = 0;
  bool last = false;  // its last row is the last token known
};

// Use, for each step: plan(), the forward over the plan, mark_computed(), start_samples(), and
// finish() for each sequence that ended.
class Scheduler {
 public:
  Scheduler(const EngineOptions& options, BlockPool& pool) : options_(options), pool_(pool) {}

  void add(RequestState& request) { requests_.push_back(&request); }
  bool idle() const { return requests_.empty(); }

  // Chooses the rows of the next step and gives them blocks: one for each running sequence, then
  // prompts in order. Each piece has a span.
  void plan(std::vector<int32_t>& ids, std::vector<StepSpan>& spans);
  const std::vector<Piece>& pieces() const { return pieces_; }  // of the last plan, in its order
  // After the forward over the plan.
  void mark_computed();
  // Starts samples of computed prompts as places and blocks allow, and returns them in order.
  std::vector<Sequence*> start_samples(
      const std::function<void(int32_t from, int32_t to)>& copy_block);
  void finish(Sequence& sequence);  // destroys it and frees its blocks
  std::vector<Sequence*> sequences_of(const RequestState& request);
  void remove(RequestState& request);  // with its sequences and blocks

  int64_t preemptions() const { return preemptions_; }
  int64_t reused_tokens() const { return reused_tokens_; }

 private:
  int64_t free_places() const;
  bool reclaim(const Sequence* keep);
  bool plan_sequence(Sequence& sequence, int64_t rows);
  void add_piece(Sequence* sequence, SampleGroup* group, int64_t count);
  bool admit(CachedTokens& cached, const std::vector<int32_t>& tokens);
  SampleGroup* next_group();
  bool resume_preempted(int64_t& budget);
  void plan_groups(int64_t& budget);
  std::unique_ptr<Sequence> make_sequence(SampleGroup& group) const;
  bool give_blocks(SampleGroup& group, Sequence& sequence,
                   const std::function<void(int32_t, int32_t)>& copy_block);

  const EngineOptions& options_;
  BlockPool& pool_;
  std::deque<RequestState*> requests_;              // first in, first out
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order they were started
  std::deque<std::unique_ptr<Sequence>> preempted_;
  std::vector<SampleGroup*> open_;  // prompts being computed or with samples to start, in order
  std::vector<Piece> pieces_;
  int64_t rows_ = 0;
  int64_t preemptions_ = 0;
  int64_t reused_tokens_ = 0;
};

}  // namespace retort::models
