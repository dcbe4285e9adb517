// The teacher role: a frozen decoder that answers typed requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/teacher_methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers teacher.info, teacher.head and teacher.forward. A request is computed exactly as it was sent: one forward over the
// pack in inference mode, so the same request gives the same bits on every replica and at every time.
// Threads: compute only (the thread that drains the handler queue). Collectives: none (one rank for each replica).
class Teacher {
 public:
  // `name`: "teacher/0".
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer);

  TeacherInfo info(const InfoRequest& request) const;
  HeadReply head(const HeadRequest& request) const;
  // kInvalidArgument when ids, offsets or positions are outside what they index.
  Payload forward(const ForwardRequest& request) const;

  // Registers the three methods; jobs go to `queue`. The teacher must outlive the agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue);
  int64_t requests_served() const { return served_; }

 private:
  std::string name_;
  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  uint64_t weight_version_ = 1;
  mutable int64_t served_ = 0;
};

}  // namespace retort::roles
