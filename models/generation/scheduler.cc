#include "models/generation/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace retort::models {

const std::vector<int32_t>& SampleGroup::tokens() const { return request->request.prompts[prompt]; }
int64_t SampleGroup::pending() const { return request->request.num_generations - started; }

// Counts the places in flight that no sequence has and that no sample about to start will take.
int64_t Scheduler::free_places() const {
  int64_t places =
      options_.max_sequences - static_cast<int64_t>(running_.size() + preempted_.size());
  for (const SampleGroup* group : open_)
    places -= group->ready ? group->pending() : group->reserved;
  return places;
}

// Takes the blocks of the prompt that came last or, when no prompt has any, of the sequence that
// was started last; what loses its blocks is computed again. Earlier work never gives way to later
// work, so the oldest sequence always goes on. False when `keep` itself was the last.
bool Scheduler::reclaim(const Sequence* keep) {
  for (auto group = open_.rbegin(); group != open_.rend(); ++group) {
    if (!(*group)->has_blocks()) continue;
    pool_.release((*group)->cached);
    (*group)->ready = false;
    (*group)->reserved = 0;
    return true;
  }
  const bool itself = running_.back().get() == keep;
  pool_.release(running_.back()->cached);
  preempted_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++preemptions_;
  return !itself;
}

void Scheduler::add_piece(Sequence* sequence, SampleGroup* group, int64_t count) {
  const CachedTokens& cached = sequence ? sequence->cached : group->cached;
  const size_t size = sequence ? sequence->tokens.size() : group->tokens().size();
  pieces_.push_back(
      {sequence, group, rows_, count, cached.computed + count == static_cast<int64_t>(size)});
  rows_ += count;
}

bool Scheduler::plan_sequence(Sequence& sequence, int64_t rows) {
  const int64_t count =
      std::min(rows, static_cast<int64_t>(sequence.tokens.size()) - sequence.cached.computed);
  // When the cache is full, later work gives up its blocks, or this sequence does if it is the
  // last.
  while (!pool_.extend(sequence.cached, sequence.cached.computed + count)) {
    if (!reclaim(&sequence)) return false;
  }
  add_piece(&sequence, nullptr, count);
  return true;
}

// Takes over the cached blocks of the beginning of `tokens` and gets new ones for the rest. False,
// with nothing held, when too few are available.
bool Scheduler::admit(CachedTokens& cached, const std::vector<int32_t>& tokens) {
  pool_.match(cached, tokens);
  const int64_t reused = cached.computed;
  // One block for each running sequence must stay available, so that a start does not drive another
  // sequence out at once.
  const int64_t missing = pool_.blocks_for(static_cast<int64_t>(tokens.size())) -
                          static_cast<int64_t>(cached.table.size());
  if (missing + static_cast<int64_t>(running_.size()) > pool_.available() ||
      !pool_.extend(cached, static_cast<int64_t>(tokens.size()))) {
    pool_.release(cached);
    return false;
  }
  reused_tokens_ += reused;
  return true;
}

// Resumes preempted sequences in their order. False when one of them has to wait, because then
// nothing may overtake it.
bool Scheduler::resume_preempted(int64_t& budget) {
  while (!preempted_.empty()) {
    if (budget <= 0 || !admit(preempted_.front()->cached, preempted_.front()->tokens)) return false;
    running_.push_back(std::move(preempted_.front()));
    preempted_.pop_front();
    const int64_t before = rows_;
    plan_sequence(*running_.back(), budget);
    budget -= rows_ - before;
  }
  return true;
}

// Returns the next prompt without blocks: one that lost them, else a new one; null when there is
// none.
SampleGroup* Scheduler::next_group() {
  for (SampleGroup* group : open_) {
    if (!group->has_blocks()) return group;
  }
  for (RequestState* request : requests_) {
    if (request->next_group < request->groups.size()) return &request->groups[request->next_group];
    if (!options_.merge_requests) break;
  }
  return nullptr;
}

void Scheduler::plan_groups(int64_t& budget) {
  const auto plan_one = [&](SampleGroup& group) {
    const int64_t count =
        std::min(budget, static_cast<int64_t>(group.tokens().size()) - group.cached.computed);
    if (count > 0) add_piece(nullptr, &group, count);
    budget -= count;
  };

  // Prompts that are partly computed go on before another begins.
  for (SampleGroup* group : open_) {
    if (group->has_blocks() && !group->ready) plan_one(*group);
  }

  // A prompt begins only where a place is free. It reserves places for its samples, so that no
  // later prompt takes them while it is computed.
  while (budget > 0 && free_places() > 0) {
    SampleGroup* group = next_group();
    if (group == nullptr || !admit(group->cached, group->tokens())) return;
    group->reserved = std::min(group->pending(), free_places());
    if (std::find(open_.begin(), open_.end(), group) == open_.end()) {
      ++group->request->next_group;
      group->reused = group->cached.computed;
      open_.push_back(group);
    }
    plan_one(*group);
  }
}

void Scheduler::plan(std::vector<int32_t>& ids, std::vector<StepSpan>& spans) {
  pieces_.clear();
  rows_ = 0;
  const int64_t preempted_before = preemptions_;
  // Every running sequence gets at least one row; the first ones take what the others leave.
  for (size_t i = 0; i < running_.size(); ++i) {
    const auto later = static_cast<int64_t>(running_.size() - i - 1);
    if (!plan_sequence(*running_[i], options_.max_tokens_per_step - rows_ - later)) break;
  }

  // What is left of the step goes to preempted sequences, then to prompts. When blocks have just
  // run out, nothing else starts in this step.
  int64_t budget = options_.max_tokens_per_step - rows_;
  if (preemptions_ == preempted_before && resume_preempted(budget)) plan_groups(budget);

  // The model needs the tokens of the rows and the blocks where their keys and values go.
  ids.clear();
  spans.clear();
  for (const Piece& piece : pieces_) {
    const CachedTokens& cached = piece.sequence ? piece.sequence->cached : piece.group->cached;
    const std::vector<int32_t>& tokens =
        piece.sequence ? piece.sequence->tokens : piece.group->tokens();
    ids.insert(ids.end(), tokens.begin() + cached.computed,
               tokens.begin() + cached.computed + piece.count);
    spans.push_back({.first_row = piece.first_row,
                     .count = piece.count,
                     .first_position = cached.computed,
                     .table = cached.table.data(),
                     .last = piece.last});
  }
}

void Scheduler::mark_computed() {
  for (const Piece& piece : pieces_) {
    CachedTokens& cached = piece.sequence ? piece.sequence->cached : piece.group->cached;
    cached.computed += piece.count;
    // Only now are the blocks filled, so that others may take them over.
    pool_.publish(cached, piece.sequence ? piece.sequence->tokens : piece.group->tokens());
    if (piece.group != nullptr && piece.last) {
      piece.group->ready = true;
      piece.group->reserved = 0;
    }
  }
}

std::unique_ptr<Sequence> Scheduler::make_sequence(SampleGroup& group) const {
  const GenerationRequest& request = group.request->request;
  auto sequence = std::make_unique<Sequence>();
  sequence->group = &group;
  sequence->completion = group.prompt * static_cast<size_t>(request.num_generations) +
                         static_cast<size_t>(group.started);
  sequence->sample_id =
      request.sample_ids.empty() ? sequence->completion : request.sample_ids[sequence->completion];
  sequence->max_new_tokens = request.max_new_tokens_of_prompt.empty()
                                 ? request.draw.max_new_tokens
                                 : request.max_new_tokens_of_prompt[group.prompt];
  sequence->tokens = group.tokens();
  sequence->result.reused_tokens = group.reused;

  // The repetition penalty applies to tokens of the prompt too, so the history begins with them.
  if (request.draw.sampling.repetition_penalty != 1.0) {
    sequence->seen = sequence->tokens;
    std::sort(sequence->seen.begin(), sequence->seen.end());
    sequence->seen.erase(std::unique(sequence->seen.begin(), sequence->seen.end()),
                         sequence->seen.end());
  }
  return sequence;
}

// Gives a sample the prompt's blocks. The last sample takes them; the others share the full blocks
// and copy the partly filled one, since each of them will write to it. False when there is no block
// for the copy.
bool Scheduler::give_blocks(SampleGroup& group, Sequence& sequence,
                            const std::function<void(int32_t, int32_t)>& copy_block) {
  const auto length = static_cast<int64_t>(group.tokens().size());
  // When nothing runs and no block is left for the copy, a sample takes the blocks as well:
  // otherwise no sample would ever start.
  const bool take = group.pending() == 1 || (running_.empty() && pool_.available() == 0 &&
                                             length % pool_.block_tokens() != 0);
  if (take) {
    sequence.cached = std::move(group.cached);
    group.cached = {};
    group.ready = group.pending() == 1;  // else the others compute it again
    return true;
  }
  sequence.cached = pool_.share(group.cached);
  const size_t shared = sequence.cached.table.size();
  if (!pool_.extend(sequence.cached, length)) {
    pool_.release(sequence.cached);
    return false;
  }
  if (sequence.cached.table.size() > shared)
    copy_block(group.cached.table[shared], sequence.cached.table[shared]);
  sequence.cached.computed = length;
  return true;
}

std::vector<Sequence*> Scheduler::start_samples(
    const std::function<void(int32_t, int32_t)>& copy_block) {
  std::vector<Sequence*> started;
  const auto in_flight = [&] { return static_cast<int64_t>(running_.size() + preempted_.size()); };
  for (SampleGroup* group : open_) {
    while (group->ready && group->pending() > 0 && in_flight() < options_.max_sequences) {
      auto sequence = make_sequence(*group);
      if (!give_blocks(*group, *sequence, copy_block)) break;
      ++group->started;
      started.push_back(sequence.get());
      running_.push_back(std::move(sequence));
    }
  }
  std::erase_if(open_, [](const SampleGroup* group) { return group->pending() == 0; });
  return started;
}

void Scheduler::finish(Sequence& sequence) {
  pool_.release(sequence.cached);
  std::erase_if(running_, [&](const auto& other) { return other.get() == &sequence; });
}

std::vector<Sequence*> Scheduler::sequences_of(const RequestState& request) {
  std::vector<Sequence*> found;
  for (const auto& sequence : running_) {
    if (sequence->group->request == &request) found.push_back(sequence.get());
  }
  for (const auto& sequence : preempted_) {
    if (sequence->group->request == &request) found.push_back(sequence.get());
  }
  return found;
}

void Scheduler::remove(RequestState& request) {
  // Blocks are counted by owner, so every owner gives its own back before it goes.
  const auto belongs = [&](const auto& sequence) { return sequence->group->request == &request; };
  for (Sequence* sequence : sequences_of(request))
    pool_.release(sequence->cached);
  std::erase_if(running_, belongs);
  std::erase_if(preempted_, belongs);
  for (SampleGroup* group : open_) {
    if (group->request == &request) pool_.release(group->cached);
  }
  std::erase_if(open_, [&](const SampleGroup* group) { return group->request == &request; });
  std::erase(requests_, &request);
}

}  // namespace retort::models
