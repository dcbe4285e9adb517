#include "roles/teacher_client.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/log.h"

namespace retort::roles {
namespace {

// Rows of the head for one message: about 64 MiB.
int64_t head_rows_per_message(int64_t hidden_size) { return std::max<int64_t>(1, (int64_t{64} << 20) / (hidden_size * 4)); }

}  // namespace

TeacherClient::TeacherClient(rpc::Agent& agent, Options options, const models::Tokenizer& student_tokenizer)
    : agent_(agent), options_(std::move(options)), lost_(options_.replicas.size(), false) {
  const rpc::CallOptions call{.timeout = options_.timeout};
  const int64_t student_size = student_tokenizer.vocab_size();
  for (size_t i = 0; i < options_.replicas.size(); ++i) {
    const std::string& peer = options_.replicas[i];
    const TeacherInfo info = agent_.call(peer, kTeacherInfo, {student_size, options_.weights_fingerprint}, call).get();
    const int64_t known = std::min(student_size, info.tokenizer_size);
    const std::string mine = student_tokenizer.vocabulary_fingerprint(known);
    if (mine != info.vocabulary_fingerprint)
      throw Error(ErrorCode::kMismatch,
                  "student and teacher tokenizers differ in the " + std::to_string(known) + " ids that both know: student " +
                      mine.substr(0, 16) + ", teacher " + info.vocabulary_fingerprint.substr(0, 16) +
                      "; distillation compares distributions id by id, so use a teacher with the student's tokenizer")
          .with("teacher", peer);
    if (info.processing_fingerprint != student_tokenizer.processing_fingerprint()) {
      RETORT_LOG(kWarning)
          << "the tokenizers of student and " << peer
          << " have the same vocabulary but other merges, normaliser or chat template; only the student's is used";
    }
    if (i > 0 && (info.vocab_rows != info_.vocab_rows || info.hidden_size != info_.hidden_size ||
                  info.weight_version != info_.weight_version || info.dtype != info_.dtype ||
                  info.weights_fingerprint != info_.weights_fingerprint))
      throw Error(ErrorCode::kMismatch, "replicas of a teacher serve different models").with("teacher", peer);
    info_ = info;
    // Rows above what both tokenizers can name are padding: masked inside the divergence, on both sides.
    const int64_t common = std::min({known, options_.student_vocab_rows, info.vocab_rows});
    // A target's log-probability is that of the teacher's own softmax, over every row it has, as in its own evaluation.
    const bool all_rows = common == options_.student_vocab_rows && common == info.vocab_rows;
    options_.spec.common_vocab = all_rows || options_.spec.kind == PayloadKind::kTargetLogProbs ? 0 : common;
  }
  if (options_.spec.kind != PayloadKind::kHiddenStates) return;
  std::vector<at::Tensor> parts;
  const int64_t step = head_rows_per_message(info_.hidden_size);
  for (int64_t begin = 0; begin < info_.vocab_rows; begin += step) {
    const int64_t end = std::min(begin + step, info_.vocab_rows);
    HeadReply reply = agent_.call(options_.replicas[0], kTeacherHead, {begin, end}, call).get();
    if (reply.weight_version != info_.weight_version || reply.weight.dim() != 2 || reply.weight.size(0) != end - begin ||
        reply.weight.size(1) != info_.hidden_size)
      throw Error(ErrorCode::kCorrupt, "teacher.head answered other rows than asked").with("teacher", options_.replicas[0]);
    parts.push_back(reply.weight);
  }
  head_ = at::cat(parts, 0);
}

PendingPayload TeacherClient::send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                                   const at::Tensor& positions) {
  PendingPayload pending;
  pending.request = {.request_id = request_id,
                     .step = step,
                     .input_ids = tokens.input_ids.to(at::kInt),
                     .cu_seqlens = at::tensor(tokens.cu_seqlens, at::kLong).to(at::kInt),
                     .positions = positions.to(at::kInt),
                     .spec = options_.spec};
  pending.replica = request_id % options_.replicas.size();
  dispatch(pending);
  return pending;
}

void TeacherClient::dispatch(PendingPayload& pending) {
  const size_t count = options_.replicas.size();
  size_t tries = 0;
  while (lost_[pending.replica] && tries++ < count) pending.replica = (pending.replica + 1) % count;
  if (lost_[pending.replica])
    throw Error(ErrorCode::kPeerLost, "every replica of role '" + options_.role + "' is lost")
        .with("request", pending.request.request_id)
        .with("step", pending.request.step);
  pending.reply =
      agent_.call(options_.replicas[pending.replica], kTeacherForward, pending.request, {.timeout = options_.timeout});
}

Payload TeacherClient::receive(PendingPayload pending, double* waited) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const std::string& peer = options_.replicas[pending.replica];
    try {
      Payload payload = pending.reply.get();
      if (waited) *waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const PayloadLabel expected{
          .request_id = pending.request.request_id,
          .teacher = peer,
          .weight_version = info_.weight_version,
          .sequence_hash = sequence_hash(pending.request.input_ids, pending.request.cu_seqlens, pending.request.positions),
          .num_rows = pending.request.positions.numel(),
          .spec = options_.spec};
      const int64_t vocab = options_.spec.common_vocab > 0 ? options_.spec.common_vocab : info_.vocab_rows;
      check_payload(payload, expected, vocab, info_.hidden_size);
      return payload;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost || options_.replicas.size() == 1)
        throw error.with("teacher", peer).with("step", pending.request.step);
      RETORT_LOG(kWarning) << peer << " is lost; request " << pending.request.request_id << " goes to another replica";
      lost_[pending.replica] = true;
      dispatch(pending);
    }
  }
}

}  // namespace retort::roles
