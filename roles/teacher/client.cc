#include "roles/teacher/client.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/this_host.h"
#include "parallel/vote.h"
#include "roles/payload/row_part.h"
#include "roles/payload/sharded.h"
#include "roles/teacher/host_fetch.h"
#include "roles/teacher/requests.h"

namespace retort::roles {
namespace {

// The rows of the head that travel in one message, about 64 MiB in float32.
int64_t head_rows_per_message(int64_t hidden_size) {
  return std::max<int64_t>(1, (int64_t{64} << 20) / (hidden_size * 4));
}

}  // namespace

TeacherClient::TeacherClient(rpc::Agent& agent, Options options,
                             const models::Tokenizer& student_tokenizer)
    : agent_(agent),
      options_(std::move(options)),
      replicas_(agent,
                {.role = options_.role,
                 .replicas = options_.replicas,
                 .timeout = options_.timeout,
                 .links = options_.links,
                 .patience = options_.patience,
                 .weights_fingerprint = options_.weights_fingerprint,
                 .why_same_ids = "distillation compares distributions id by id, so use a teacher "
                                 "with the student's tokenizer"},
                &student_tokenizer) {
  if (options_.tp != nullptr && options_.tp->size() == 1) options_.tp = nullptr;
  set_common_vocab(student_tokenizer);
  if (options_.spec.kind == PayloadKind::kHiddenStates) head_ = head_of_this_host();
}

// Rows above what both tokenizers can name are padding: masked inside the divergence, on both
// sides.
void TeacherClient::set_common_vocab(const models::Tokenizer& student) {
  const int64_t known = std::min<int64_t>(student.vocab_size(), info().tokenizer_size);
  const int64_t common = std::min({known, options_.student_vocab_rows, info().vocab_rows});
  // A target's log-probability is that of the teacher's own softmax, over every row it has, as in
  // its own evaluation, unless the caller says which ids it is over.
  if (options_.spec.kind == PayloadKind::kTargetLogProbs) return;
  const bool all_rows = common == options_.student_vocab_rows && common == info().vocab_rows;
  options_.spec.common_vocab = all_rows ? 0 : common;
}

// Fetches rows [begin, end) of the head from a rank that has them.
at::Tensor TeacherClient::fetch_rows(const std::string& peer, int64_t begin, int64_t end) const {
  HeadReply reply =
      rpc::ask_until_up(options_.links, {peer}, Deadline::after(options_.patience), [&] {
        return agent_.call(peer, kTeacherHead, {begin, end}, {.timeout = options_.timeout}).get();
      });
  if (reply.weight_version != info().weight_version || reply.weight.dim() != 2 ||
      reply.weight.size(0) != end - begin || reply.weight.size(1) != info().hidden_size)
    throw Error(ErrorCode::kCorrupt, "teacher.head answered other rows than asked")
        .with("teacher", peer);
  place(reply.weight);
  return reply.weight;
}

Range TeacherClient::wanted_rows() const {
  return head_rows(options_.student_vocab_rows, info().vocab_rows, parts(), part());
}

// Fetches each row from the rank of the teacher that has it.
at::Tensor TeacherClient::fetch_head(Range wanted) const {
  std::vector<at::Tensor> rows;
  for (int64_t rank = 0; rank < info().tp; ++rank) {
    const Range there = intersect(wanted, shard_of(info().vocab_rows, info().tp, rank));
    const std::string& peer = options_.replicas[0].holder(static_cast<size_t>(rank));
    const int64_t step = head_rows_per_message(info().hidden_size);
    for (int64_t begin = there.begin; begin < there.end; begin += step)
      rows.push_back(fetch_rows(peer, begin, std::min(begin + step, there.end)));
  }
  return rows.empty() ? at::empty({0, info().hidden_size}, at::kFloat) : at::cat(rows, 0);
}

// Where answers stay on devices, every rank fetches its own rows, and nothing of them crosses host
// memory.
at::Tensor TeacherClient::head_of_this_host() const {
  const Range wanted = wanted_rows();
  if (options_.same_rows == nullptr || options_.device) return fetch_head(wanted);
  return fetch_once_a_host(*options_.same_rows, this_host(), {wanted.size(), info().hidden_size},
                           [&] { return fetch_head(wanted); });
}

PendingPayload TeacherClient::send(uint64_t request_id, int64_t step,
                                   const models::PackedTokens& tokens,
                                   const at::Tensor& positions) {
  PendingPayload pending;
  pending.request = pack_request(tokens, positions);
  pending.request.request_id = request_id;
  pending.request.step = step;
  pending.request.spec = options_.spec;
  pending.request.part = part();
  pending.request.parts = parts();
  if (parts() > 1 && options_.spec.kind == PayloadKind::kFull) {
    // A full answer is cut where the student's own shards of the vocabulary begin, so that each
    // rank gets the columns that stand beside its logits.
    const int64_t common = payload_vocab(options_.spec, info().vocab_rows);
    for (int64_t p = 0; p <= parts(); ++p)
      pending.request.columns.push_back(
          std::min(common, parallel::vocab_begin(options_.student_vocab_rows, parts(), p)));
  }
  // The replica follows from the request's id, so that all ranks of a student ask the same one,
  // which computes the answer once for all parts.
  const size_t own = request_id % options_.replicas.size();
  if (options_.spec.names_ids())
    keep_rows(pending, own);
  else
    start(pending, own);
  return pending;
}

// One rank of the student has the rows computed, for all of them. Whether that works shows when ids
// are named: then a replica that has no rows computes them.
void TeacherClient::keep_rows(PendingPayload& pending, size_t preferred) {
  const auto found = replicas_.choose(preferred);
  pending.replica = found.value_or(preferred);
  if (!found || part() != 0) return;
  ForwardRequest first = pending.request;
  first.parts = 1;
  pending.kept = agent_.call(options_.replicas[pending.replica].leader, kTeacherForward, first,
                             {.timeout = options_.timeout});
}

void TeacherClient::name_ids(PendingPayload& pending, const at::Tensor& ids) {
  pending.request.ids = ids.to(at::kCPU, at::kInt).contiguous();
  start(pending, pending.replica);
}

void TeacherClient::start(PendingPayload& pending, size_t preferred) {
  if (const auto found = replicas_.choose(preferred)) return dispatch(pending, *found);

  // No replica can be asked now. The reply fails at once, and receive() waits for a replica as it
  // does after any loss.
  pending.replica = preferred;
  pending.epoch = replicas_.epoch(preferred);
  Promise<Payload> lost;
  pending.reply = lost.future();
  lost.set_error(std::make_exception_ptr(replicas_.none_now()));
}

void TeacherClient::dispatch(PendingPayload& pending, size_t to) {
  pending.replica = to;
  pending.epoch = replicas_.epoch(to);
  const TeacherReplica& replica = options_.replicas[pending.replica];
  const rpc::CallOptions call{.timeout = options_.timeout};
  // The leader's reply brings its own piece and the label. The other ranks of the replica that have
  // a piece of this part are asked for it at the same time.
  pending.reply = agent_.call(replica.leader, kTeacherForward, pending.request, call);
  pending.pulls.clear();
  std::string key;
  for (size_t rank = 0; rank < replica.size(); ++rank) {
    if (replica.holder(rank) == replica.leader ||
        !pieces().has(pending.request, part(), static_cast<int64_t>(rank)))
      continue;
    if (key.empty()) key = result_key(pending.request);
    pending.pulls.push_back(agent_.call(replica.holder(rank), kTeacherPull, {key, part()}, call));
  }
}

// Several ranks of a student may share the device that the transfer's map names, so a received
// tensor may have to move on to its rank's own.
void TeacherClient::place(at::Tensor& received) const {
  rpc::use_on_current_stream(received);
  if (options_.device && received.defined()) received = received.to(*options_.device);
}

Payload TeacherClient::placed(Payload received) const {
  if (!may_be_on_device(options_.spec.kind)) return received;
  for (at::Tensor* tensor : received.row_tensors())
    place(*tensor);
  return received;
}

// Joins this rank's part of the answer from all ranks of the replica that have a piece of it.
Payload TeacherClient::take_pieces(PendingPayload& pending) const {
  const ForwardRequest& request = pending.request;
  const TeacherReplica& replica = options_.replicas[pending.replica];
  const PayloadLabel expected{.request_id = request.request_id,
                              .teacher = replica.leader,
                              .weight_version = info().weight_version,
                              .sequence_hash = hash_of(request),
                              .num_rows = request.positions.numel(),
                              .spec = options_.spec,
                              .part = part(),
                              .parts = parts()};

  const bool full = options_.spec.kind == PayloadKind::kFull;
  Payload answer = placed(pending.reply.get());
  check_label(answer, expected);

  // The pieces stand in the order of the replica's ranks, which is that of the columns; the
  // leader's is the answer itself.
  std::vector<Payload> taken;
  size_t pull = 0;
  for (size_t rank = 0; rank < replica.size(); ++rank) {
    const auto r = static_cast<int64_t>(rank);
    if (!pieces().has(request, part(), r)) continue;
    taken.push_back(replica.holder(rank) == replica.leader ? std::move(answer)
                                                           : placed(pending.pulls[pull++].get()));
    // The teacher does not send back the ids that the student named; they come from the request.
    if (options_.spec.support == Support::kStudent) {
      const Range rows =
          rows_of_part(options_.spec.kind, expected.num_rows, expected.parts, expected.part);
      taken.back().ids = request.ids.narrow(0, rows.begin, rows.size());
    }
    const int64_t width = full ? pieces().columns_of(request, part(), r).size()
                               : payload_vocab(options_.spec, info().vocab_rows);
    check_payload(taken.back(), expected, width, info().hidden_size);
  }

  if (!taken.empty()) return join_pieces(std::move(taken));
  // No piece exists if this rank's shard has no ids that both know.
  answer.logps = at::empty({expected.num_rows, 0}, at::kFloat);
  return answer;
}

Payload TeacherClient::receive_part(PendingPayload pending, double* waited) {
  const auto start = std::chrono::steady_clock::now();
  for (FrozenReplicas::Sent sent;;) {
    try {
      Payload part = take_pieces(pending);
      if (waited)
        *waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      return part;
    } catch (const Error& error) {
      // The request is sent again as a whole, so the other pieces of the failed answer are not
      // waited for.
      for (Future<Payload>& pull : pending.pulls)
        if (pull.valid()) pull.cancel();
      sent.replica = pending.replica;
      sent.epoch = pending.epoch;
      try {
        dispatch(pending, replicas_.next(error, sent, pending.request.request_id));
      } catch (const Error& last) {
        throw last.with("step", pending.request.step);
      }
    }
  }
}

Payload TeacherClient::receive(PendingPayload pending, double* waited) {
  if (options_.tp == nullptr) return receive_part(std::move(pending), waited);
  Payload part =
      parallel::run_on_all(*options_.tp, [&] { return receive_part(std::move(pending), waited); });
  return gather_parts(std::move(part), *options_.tp);
}

}  // namespace retort::roles
