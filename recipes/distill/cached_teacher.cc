#include "recipes/distill/cached_teacher.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "parallel/vocab_shard.h"
#include "recipes/distill/objective.h"
#include "roles/teacher/parts.h"
#include "roles/teacher/requests.h"

namespace retort::recipes {

CachedTeacher::CachedTeacher(Options options, const models::Tokenizer& student_tokenizer)
    : options_(std::move(options)),
      manifest_(read_manifest(options_.folder)),
      payloads_(options_.folder, manifest_.files) {
  options_.spec = check_cached_payload(manifest_, options_.spec,
                                       {.folder = options_.folder.string(),
                                        .tokenizer = student_tokenizer,
                                        .vocab_rows = options_.student_vocab_rows});
  if (payloads_.num_sequences() != manifest_.sequences || payloads_.num_rows() != manifest_.rows)
    throw Error(ErrorCode::kCorrupt,
                options_.folder.string() +
                    " does not hold as many payloads as its manifest says; restore it, or write "
                    "the cache anew");
  if (options_.spec.kind == roles::PayloadKind::kHiddenStates) map_head();
}

// Maps the rows of the teacher's head that this rank compares with (roles/teacher/parts.h).
void CachedTeacher::map_head() {
  const std::filesystem::path path = options_.folder / "head.bin";
  head_file_ = std::make_shared<MappedFile>(path);
  const auto bytes = head_file_->bytes();
  if (static_cast<int64_t>(bytes.size()) != manifest_.head_bytes() ||
      checksum64(bytes) != manifest_.teacher.head_checksum)
    throw Error(ErrorCode::kCorrupt, path.string() +
                                         " does not hold the teacher's head; restore it, or write "
                                         "the cache anew");
  const auto& teacher = manifest_.teacher;
  const at::Tensor whole = at::from_blob(
      const_cast<std::byte*>(bytes.data()), {teacher.vocab_rows, teacher.hidden_size},
      [file = head_file_](void*) {}, at::TensorOptions().dtype(manifest_.scalar_type()));
  const roles::Range own = roles::head_rows(options_.student_vocab_rows, teacher.vocab_rows,
                                            options_.tp_size, options_.tp_rank);
  head_ = whole.narrow(0, own.begin, own.size());
}

void CachedTeacher::check_rows(const data::Dataset& rows,
                               const std::map<std::string, std::string>& when, int64_t first,
                               int64_t stride) const {
  // The very rows that were written need no look. Of other data each row is looked up before
  // training, because one that is missing would end the run at its step.
  if (rows.fingerprint() == manifest_.data.fingerprint) return;
  for (int64_t row = first; row < rows.size(); row += stride) {
    const std::optional<data::Sample> sample = rows.get(row);
    if (!sample || !sample_matches(*sample, when)) continue;
    const data::MicroBatch alone = data::make_micro_batch({*sample});
    const roles::ForwardRequest request =
        roles::pack_request(alone.tokens, alone.predict_positions);
    for (const WantedSequence& sequence :
         wanted_sequences(request.input_ids, request.cu_seqlens, request.positions))
      if (!payloads_.contains(sequence.key))
        throw Error(
            ErrorCode::kMismatch,
            sample->origin + " is not in the cache '" + options_.folder.string() +
                "' of the teacher's payloads: the row, the tokenizer, the chat template or "
                "an option of `data` has changed since it was written, or another version of "
                "retort wrote it, which cut rows otherwise (on " +
                manifest_.data.template_day +
                ", which data.template_date sets for templates that print the day); "
                "restore it, or run `retort cache` on these rows");
  }
}

roles::PendingPayload CachedTeacher::send(uint64_t request_id, int64_t step,
                                          const models::PackedTokens& tokens,
                                          const at::Tensor& positions) {
  // Nothing is sent: the payload is read when the loss needs it.
  roles::PendingPayload pending;
  pending.request = roles::pack_request(tokens, positions);
  pending.request.request_id = request_id;
  pending.request.step = step;
  pending.request.spec = options_.spec;
  return pending;
}

roles::Payload CachedTeacher::receive(roles::PendingPayload pending, double*) {
  const roles::ForwardRequest& request = pending.request;
  const auto& teacher = manifest_.teacher;
  roles::Payload payload =
      roles::blank_payload(options_.spec, request.positions.numel(), teacher.hidden_size,
                           teacher.vocab_rows, manifest_.scalar_type());
  payload.label.request_id = request.request_id;
  for (const WantedSequence& sequence :
       wanted_sequences(request.input_ids, request.cu_seqlens, request.positions))
    payloads_.read(sequence, payload);

  // The cache holds all ids; this rank compares with its part of the student's vocabulary.
  if (options_.spec.kind == roles::PayloadKind::kFull && options_.tp_size > 1) {
    const int64_t common = payload.logps.size(1);
    const auto bound = [&](int64_t rank) {
      return std::min(common,
                      parallel::vocab_begin(options_.student_vocab_rows, options_.tp_size, rank));
    };
    const int64_t begin = bound(options_.tp_rank);
    payload.logps = payload.logps.narrow(1, begin, bound(options_.tp_rank + 1) - begin);
  }
  return payload;
}

}  // namespace retort::recipes
