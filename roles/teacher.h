// The teacher role: a frozen decoder that answers typed requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/teacher_methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers teacher.info, teacher.head and teacher.forward. As sent: one forward over the request's pack in inference mode, so the
// same request gives the same bits on every replica and at every time.
// Threads: compute only (the thread that drains the handler queue). Collectives: none (one rank for each replica).
class Teacher {
 public:
  // `name`: "teacher/0".
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer);

  TeacherInfo info(const InfoRequest& request) const;
  HeadReply head(const HeadRequest& request) const;
  // kInvalidArgument when ids, offsets or positions are outside what they index.
  Payload forward(const ForwardRequest& request) const;

  // kAsSent: one forward for each request. kDynamic: requests that wait together (of any clients) share a forward of at most
  // `max_merged_tokens`, unless one alone is larger; numbers then depend on what waited, in their last bits.
  enum class Batching { kAsSent, kDynamic };
  static constexpr int64_t kMaxMergedTokens = 16384;
  // Registers the three methods; jobs go to `queue`. The teacher must outlive the agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue, Batching batching = Batching::kAsSent,
             int64_t max_merged_tokens = kMaxMergedTokens);
  int64_t requests_served() const { return served_; }
  int64_t forwards() const { return forwards_; }

 private:
  struct Waiting {
    ForwardRequest request;
    models::PackedTokens tokens;
    std::shared_ptr<const std::atomic<bool>> cancelled;
    rpc::Promise<Payload> reply;
  };
  rpc::Future<Payload> wait_to_merge(ForwardRequest request, const rpc::CallContext& context,
                                     const std::shared_ptr<rpc::HandlerQueue>& queue);
  void compute_waiting();
  void compute_together(std::vector<Waiting> batch) const;
  Payload answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const;

  std::string name_;
  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  uint64_t weight_version_ = 1;
  mutable std::string fingerprint_;
  std::vector<Waiting> waiting_;
  int64_t max_merged_tokens_ = kMaxMergedTokens;
  mutable int64_t served_ = 0, forwards_ = 0;
};

}  // namespace retort::roles
