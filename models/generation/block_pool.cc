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
  if (block.uses++ == 0) unused_.erase(block.released);
}

void BlockPool::drop(int32_t id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  RETORT_CHECK(block.uses > 0) << "block " << id << " is released twice";
  if (--block.uses > 0) return;
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
    if (added) {
      block.serial = next_serial_++;
      block.key = place->first;
    }
    cached.chain = blocks_[static_cast<size_t>(place->second)].serial;
  }
}

void BlockPool::release(CachedTokens& cached) {
  // later blocks are of use to fewer
  for (auto id = cached.table.rbegin(); id != cached.table.rend(); ++id)
    drop(*id);
  cached = {};
}

CachedTokens BlockPool::share(const CachedTokens& cached) {
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
