#include "roles/teacher/frozen_replicas.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace retort::roles {
namespace {

// An answer that a replica no longer has is asked for again at most this often.
constexpr int kMaxRepeats = 3;
constexpr std::chrono::milliseconds kStopLook{500};

// Stands for the logarithm of 0: the difference of two infinities would be NaN, that of two of
// these is 0.
constexpr double kLeastNumber = -1e30;

std::string short_of(const std::string& fingerprint) { return fingerprint.substr(0, 16); }

}  // namespace

FrozenReplicas::FrozenReplicas(rpc::Agent& agent, Options options, const models::Tokenizer* student)
    : agent_(agent),
      options_(std::move(options)),
      student_tokenizer_(student ? std::optional(*student) : std::nullopt),
      set_({.replicas = options_.replicas,
            .links = options_.links,
            .ask = [this](const TeacherReplica& replica) { return ask(replica); },
            .check =
                [this](const TeacherReplica& replica, const TeacherInfo& info) {
                  check_tokenizers(replica.leader, info);
                  check_same_model(replica, info);
                }}) {
  for (const TeacherReplica& replica : options_.replicas)
    handshake(replica);
}

Future<TeacherInfo> FrozenReplicas::ask(const TeacherReplica& replica) {
  const InfoRequest question{
      .tokenizer_size = student_tokenizer_ ? student_tokenizer_->vocab_size() : 0,
      .weights_fingerprint = options_.weights_fingerprint};
  return agent_.call(replica.leader, kTeacherInfo, question, {.timeout = options_.timeout});
}

void FrozenReplicas::handshake(const TeacherReplica& replica) {
  const TeacherInfo info =
      rpc::ask_until_up(options_.links, replica.peers(), Deadline::after(options_.patience),
                        [&] { return ask(replica).get(); });
  check_tokenizers(replica.leader, info);
  check_same_model(replica, info);
  info_ = info;
  files_[replica.leader] = info.files;
}

// The role is asked about ids, so both must number their tokens alike. It was told how many ids the
// student knows, and its fingerprint is over the same `known` ones.
void FrozenReplicas::check_tokenizers(const std::string& peer, const TeacherInfo& info) const {
  if (!student_tokenizer_) return;
  const int64_t known = std::min(student_tokenizer_->vocab_size(), info.tokenizer_size);
  const std::string mine = student_tokenizer_->vocabulary_fingerprint(known);
  if (mine != info.vocabulary_fingerprint)
    throw Error(ErrorCode::kMismatch,
                "student and " + options_.role + " tokenizers differ in the " +
                    std::to_string(known) + " ids that both know: student " + short_of(mine) +
                    ", " + options_.role + " " + short_of(info.vocabulary_fingerprint) + "; " +
                    options_.why_same_ids)
        .with("peer", peer);
  if (info.processing_fingerprint != student_tokenizer_->processing_fingerprint()) {
    RETORT_LOG(kWarning) << "the tokenizers of student and " << peer
                         << " have the same vocabulary but other merges, normaliser or chat "
                            "template; only the student's is used";
  }
}

// Refuses a replica that is not what its role says, or not the same model as the others.
void FrozenReplicas::check_same_model(const TeacherReplica& replica,
                                      const TeacherInfo& info) const {
  if (info.tp != static_cast<int64_t>(replica.size()))
    throw Error(ErrorCode::kMismatch,
                "the model's head lies on another number of ranks than its role says")
        .with("peer", replica.leader)
        .with("ranks", info.tp)
        .with("expected", replica.size());
  if (!info_.name.empty() &&
      (info.vocab_rows != info_.vocab_rows || info.hidden_size != info_.hidden_size ||
       info.weight_version != info_.weight_version || info.dtype != info_.dtype ||
       info.tp != info_.tp || info.weights_fingerprint != info_.weights_fingerprint))
    throw Error(ErrorCode::kMismatch,
                "replicas of role '" + options_.role + "' serve different models")
        .with("peer", replica.leader);
  if (!info_.name.empty()) check_same_numbers(info);

  // A role that is asked in words has neither ids nor sizes: only its name says who answers.
  const bool in_words = !student_tokenizer_.has_value();
  if (in_words && !info_.name.empty() && info.files != info_.files)
    throw Error(ErrorCode::kMismatch, "role '" + options_.role + "' is served by '" + info_.files +
                                          "' and by '" + info.files +
                                          "': every address must serve one model; name it with "
                                          "external.served_model")
        .with("peer", replica.leader);

  // A replica that was started again has read its files anew, and they may have changed.
  const auto before = files_.find(replica.leader);
  if (before != files_.end() && before->second != info.files)
    throw Error(ErrorCode::kMismatch,
                "role '" + options_.role +
                    "' was started again and its model's files have changed since the run began; "
                    "put them back and use --resume, or begin a new run")
        .with("peer", replica.leader);
}

// With a replica of another model a share of all answers would be wrong, and no answer would show
// it.
void FrozenReplicas::check_same_numbers(const TeacherInfo& info) const {
  const ProbeNumbers &mine = info_.numbers, &its = info.numbers;
  const size_t count = mine.values.size();

  // Two limits: rounding may move one number far, other weights move all of them.
  bool same = its.values.size() == count;
  double largest = 0, sum = 0;
  for (size_t i = 0; same && i < count; ++i) {
    const double difference =
        std::abs(std::max(its.values[i], kLeastNumber) - std::max(mine.values[i], kLeastNumber));
    largest = std::max(largest, difference);
    sum += difference;
  }
  const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
  const double most = std::max(mine.largest, its.largest),
               most_mean = std::max(mine.mean, its.mean);
  same = same && largest <= most && mean <= most_mean;
  if (same) return;

  // Nobody can tell which of the two is the wrong one, so both are named.
  throw Error(ErrorCode::kMismatch,
              "replicas of role '" + options_.role +
                  "' give the same tokens other numbers: one of the addresses serves another "
                  "model, or other weights; every address must serve the same (if they only round "
                  "differently, say by how much with external.tolerance)")
      .with("replica", info.name)
      .with("other", info_.name)
      .with("largest_difference", largest)
      .with("mean_difference", mean)
      .with("allowed", most)
      .with("allowed_mean", most_mean);
}

Error FrozenReplicas::none_now() const {
  return Error(ErrorCode::kPeerLost, "no replica of role '" + options_.role + "' can be asked now");
}

std::optional<size_t> FrozenReplicas::wait(size_t preferred) {
  const Deadline deadline = Deadline::after(options_.patience);
  for (;;) {
    if (stopped_) throw Error(ErrorCode::kCancelled, "nobody waits for '" + options_.role + "'");
    // The wait is cut into short looks, so that stop() is heard while no replica is up.
    const Deadline look(std::min(deadline.time(), Deadline::after(kStopLook).time()));
    if (const auto found = set_.wait(preferred, look)) return found;
    if (!options_.links || deadline.expired()) return std::nullopt;
  }
}

size_t FrozenReplicas::next(const Error& error, Sent& sent, uint64_t request) {
  const std::string peer = options_.replicas[sent.replica].leader;
  // Two errors are worth another try: a lost replica, if another is there or it may come back, and
  // a dropped answer, a few times. All others are the caller's.
  const bool lost = error.code() == ErrorCode::kPeerLost && (size() > 1 || options_.links);
  const bool dropped = error.code() == ErrorCode::kUnavailable && sent.repeats++ < kMaxRepeats;
  if (!lost && !dropped) throw error.with("peer", peer);
  size_t to = sent.replica;
  if (lost) {
    set_.lost(sent.replica, sent.epoch);
    const auto found = wait(sent.replica);
    if (!found)
      throw Error(ErrorCode::kPeerLost, "every replica of role '" + options_.role + "' is lost")
          .with("request", request);
    to = *found;
  }
  RETORT_LOG(kWarning) << peer << (lost ? " was lost" : " dropped an answer") << "; request "
                       << request << " is sent again to " << options_.replicas[to].leader;
  return to;
}

}  // namespace retort::roles
