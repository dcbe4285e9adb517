// A teacher's requests before they are computed: what is refused, and who asked for what.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/packed.h"
#include "roles/teacher/methods.h"

namespace retort::roles {

// Checks every index before the model sees it: kInvalidArgument when ids, offsets, positions, spec
// or parts are outside what they index. The pack of a good one.
models::PackedTokens unpack_request(const ForwardRequest& request, int64_t vocab_rows);
// The token after each wanted position, which must be of the same sequence: [R] int64.
at::Tensor targets_of(const ForwardRequest& request);

// Packs laid end to end, and where the wanted rows of each request are then.
struct MergedPacks {
  models::PackedTokens tokens;
  std::vector<at::Tensor> rows;  // int64
};
// `packs`: those of the requests.
MergedPacks merge_packs(const std::vector<const ForwardRequest*>& requests,
                        std::vector<models::PackedTokens> packs);

// Requests of one or several parts, each to be computed once however many ranks ask for its parts.
// Threads: one.
class SharedRequests {
 public:
  explicit SharedRequests(std::chrono::milliseconds lease) : lease_(lease) {}
  using Cancelled = std::shared_ptr<const std::atomic<bool>>;

  // request.part is wanted. It waits to be computed, unless it waits already, or was computed and
  // this part not asked for since.
  void ask(const std::string& key, const ForwardRequest& request, Cancelled cancelled);
  bool empty() const { return waiting_.empty(); }
  // The oldest that waits, and those behind it as long as all together have at most `max_tokens`;
  // without those that nobody waits for any more.
  std::vector<ForwardRequest> take(int64_t max_tokens);
  // It could not be computed: whoever asks for a part of it from now on asks anew.
  void forget(const std::string& key);

 private:
  struct Asked {
    std::vector<bool> parts;
    bool computed = false;
    std::vector<Cancelled> cancelled;  // of those who wait for it to be computed
    std::chrono::steady_clock::time_point since;
  };
  struct Waiting {
    std::string key;
    ForwardRequest request;
  };
  void forget_old();

  std::chrono::milliseconds lease_;
  // until every part was asked for and it is computed, or the lease is over
  std::map<std::string, Asked> asked_;
  std::deque<Waiting> waiting_;
};

}  // namespace retort::roles
