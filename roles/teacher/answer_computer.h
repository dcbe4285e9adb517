// Computes the answers to a teacher's requests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/world.h"
#include "roles/payload/payload.h"
#include "roles/teacher/hidden_state_cache.h"
#include "roles/teacher/methods.h"
#include "roles/trainer/pipeline.h"

namespace retort::roles {

// Forward passes of a frozen decoder, and the answers that are formed of them. The same requests
// give the same bits at every time.
//
// Collectives: none where one rank has all of the model. Else every rank of the world calls
//   compute() with the same requests: those of the decoder on tp, messages on pp, and on the last
//   stage those of make_payload on tp.
// Threads: compute.
class AnswerComputer {
 public:
  // `world`: of the ranks that hold the model together; null: this rank has all of it. Must outlive
  // the computer. `on_device`: answers stay on the decoder's device, as far as their kind may.
  AnswerComputer(models::Decoder decoder, parallel::World* world, bool on_device = false,
                 HiddenStateCache::Options kept = {});
  AnswerComputer(const AnswerComputer&) = delete;
  AnswerComputer& operator=(const AnswerComputer&) = delete;

  const models::Decoder& decoder() const { return decoder_; }
  // True if this rank forms answers: the pipeline ends here.
  bool forms_answers() const;

  // Gets the answer to requests[index]: every row, and of kFull the columns that this rank has of
  // the head. Of its label only the number of rows and the spec are set.
  using Deliver = std::function<void(size_t index, Payload whole)>;
  // One forward pass over all requests (check_request), laid end to end, but for those whose rows
  // are kept since an earlier one, and those that ask to keep rows that find no room. Where the
  // pipeline ends, each answer is delivered as soon as it is formed: first those that need no pass,
  // then the others, each in the order of the requests. Of one that asks to keep it has no tensors.
  void compute(const std::vector<ForwardRequest>& requests, const Deliver& deliver);

  int64_t forwards() const { return forwards_; }
  int64_t requests_served() const { return served_; }
  const HiddenStateCache& kept() const { return kept_; }

 private:
  // Requests whose rows a pass computes, and who wants them.
  struct Pass {
    std::vector<ForwardRequest> requests;
    std::vector<std::vector<size_t>> wanted_by;  // of each: indices of what was asked
    std::vector<std::string> keys;               // of each: kept_key, "" where none is needed
  };
  Pass answer_kept(const std::vector<ForwardRequest>& requests, const Deliver& deliver);
  std::vector<at::Tensor> rows_of(const std::vector<ForwardRequest>& requests);
  bool keeps(const ForwardRequest& request, const std::string& key, int64_t ahead);
  int64_t row_bytes(const ForwardRequest& request) const;
  Payload answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const;

  models::Decoder decoder_;
  const bool on_device_;
  std::unique_ptr<Pipeline> pipeline_;  // null: this rank has all of the model
  HiddenStateCache kept_;
  bool said_full_ = false;  // that there was no room to keep
  int64_t forwards_ = 0;
  int64_t served_ = 0;
};

}  // namespace retort::roles
