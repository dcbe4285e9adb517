#include "models/generation/block_pool.h"

#include "base/error.h"

namespace retort::models {

BlockPool::BlockPool(int64_t num_blocks, int64_t block_tokens, bool share_prefixes)
    : block_tokens_(block_tokens),
      share_(share_prefixes),
      blocks_(static_cast<size_t>(num_blocks)) {
  for (int64_t block = num_blocks - 1; block >= 0; --block)
    free_.push_back(static_cast<int32_t>(block));
}

int32_t BlockPool::take() {
  int32_t id = 0;
  // A block without contents goes first. Else the cached block that was released first is
  // forgotten.
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    id = unused_.begin()->second;
    unused_.erase(unused_.begin());
    published_.erase(blocks_[static_cast<size_t>(id)].key);
  }
  blocks_[static_cast<size_t>(id)] = Block{.uses = 1};
  return id;
}

void BlockPool::retain(int32_t id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  // A cached block that is used again may no longer be taken for something else.
  if (block.uses++ == 0) unused_.erase(block.released);
}

void BlockPool::drop(int32_t id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  RETORT_CHECK(block.uses > 0) << "block " << id << " is released twice";
  if (--block.uses > 0) return;
  // A published block keeps its contents until its place is needed.
  if (block.serial == 0) {
    free_.push_back(id);
  } else {
    block.released = clock_++;
    unused_[block.released] = id;
  }
}

bool BlockPool::extend(CachedTokens& cached, int64_t tokens) {
  const int64_t missing = blocks_for(tokens) - static_cast<int64_t>(cached.table.size());
  if (missing > available()) return false;
  for (int64_t i = 0; i < missing; ++i)
    cached.table.push_back(take());
  return true;
}

void BlockPool::match(CachedTokens& cached, const std::vector<int32_t>& tokens) {
  if (!share_) return;
  // A block is found by the contents before it and its own tokens, so a match ends at the first
  // block that differs. The last token is never taken over: its state is needed for the draw.
  for (int64_t end = block_tokens_; end < static_cast<int64_t>(tokens.size());
       end += block_tokens_) {
    const auto found = published_.find(
        {cached.chain, {tokens.begin() + (end - block_tokens_), tokens.begin() + end}});
    if (found == published_.end()) return;
    retain(found->second);
    cached.table.push_back(found->second);
    cached.chain = blocks_[static_cast<size_t>(found->second)].serial;
    cached.computed = end;
    ++cached.published;
  }
}

void BlockPool::publish(CachedTokens& cached, const std::vector<int32_t>& tokens) {
  if (!share_) return;
  for (; (cached.published + 1) * block_tokens_ <= cached.computed; ++cached.published) {
    const auto begin = tokens.begin() + cached.published * block_tokens_;
    const int32_t id = cached.table[static_cast<size_t>(cached.published)];
    Block& block = blocks_[static_cast<size_t>(id)];
    const auto [place, added] =
        published_.try_emplace({cached.chain, {begin, begin + block_tokens_}}, id);
    // If another block has published the same contents, this one stays private, and the chain goes
    // on with the name of the other.
    if (added) {
      block.serial = next_serial_++;
      block.key = place->first;
    }
    cached.chain = blocks_[static_cast<size_t>(place->second)].serial;
  }
}

void BlockPool::release(CachedTokens& cached) {
  // What is released first is reused first, and the later blocks of a sequence are of use to fewer
  // prompts.
  for (auto id = cached.table.rbegin(); id != cached.table.rend(); ++id)
    drop(*id);
  cached = {};
}

CachedTokens BlockPool::share(const CachedTokens& cached) {
  // Only full blocks are shared: each owner will write to the partly filled one.
  CachedTokens other = cached;
  other.computed = cached.computed / block_tokens_ * block_tokens_;
  other.table.resize(static_cast<size_t>(other.computed / block_tokens_));
  for (const int32_t id : other.table)
    retain(id);
  return other;
}

void BlockPool::forget() {
  RETORT_CHECK(used() == 0) << used() << " blocks are in use";
  for (const auto& [time, id] : unused_) {
    blocks_[static_cast<size_t>(id)] = {};
    free_.push_back(id);
  }
  unused_.clear();
  published_.clear();
}

}  // namespace retort::models
