// Which blocks of the KV cache hold what: reference counts, and the blocks whose contents may serve
// again. Private to models/.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace retort::models {

// The part of a sequence that is in the cache. `chain` names the contents of its first `published`
// blocks.
struct CachedTokens {
  std::vector<int32_t> table;
  int64_t computed = 0;  // tokens whose keys and values are stored
  int64_t published = 0;
  uint64_t chain = 0;
};

// A full block may be published under (the contents before it, its tokens): later sequences with
// the same beginning take it over instead of computing it. A published block that nobody uses keeps
// its contents until its place is needed, the one that was released first going first. All choices
// depend on the order of the calls alone.
class BlockPool {
 public:
  BlockPool(int64_t num_blocks, int64_t block_tokens, bool share_prefixes);

  int64_t block_tokens() const { return block_tokens_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // free, or cached and unused
  int64_t available() const { return static_cast<int64_t>(free_.size() + unused_.size()); }
  int64_t used() const { return num_blocks() - available(); }
  int64_t cached() const { return static_cast<int64_t>(unused_.size()); }
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }

  // Extends `cached` to hold `tokens` tokens. False, and nothing changed, when too few blocks are
  // available.
  bool extend(CachedTokens& cached, int64_t tokens);
  // Takes over published blocks of the beginning of `tokens`, the last token excluded. `cached`
  // must be empty.
  void match(CachedTokens& cached, const std::vector<int32_t>& tokens);
  // The blocks of `tokens` that have become full.
  void publish(CachedTokens& cached, const std::vector<int32_t>& tokens);
  // Gives all blocks back.
  void release(CachedTokens& cached);
  // A second owner of the full blocks of `cached`.
  CachedTokens share(const CachedTokens& cached);
  // Published contents are forgotten; nothing may be in use.
  void forget();

 private:
  struct Block {
    int64_t uses = 0;
    uint64_t serial = 0;  // of its published contents; 0: none
    uint64_t released = 0;
    std::pair<uint64_t, std::vector<int32_t>> key;
  };
  int32_t take();
  void retain(int32_t block);
  void drop(int32_t block);

  int64_t block_tokens_;
  bool share_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::map<uint64_t, int32_t> unused_;  // by the time of release
  std::map<std::pair<uint64_t, std::vector<int32_t>>, int32_t> published_;
  uint64_t next_serial_ = 1;
  uint64_t clock_ = 1;
};

}  // namespace retort::models
