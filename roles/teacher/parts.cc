#include "roles/teacher/parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/vocab_shard.h"
#include "roles/payload/sharded.h"

namespace retort::roles {
namespace {

// All ranks' rows, behind one another: rank r's are row_part(rows, ranks, r).
at::Tensor gather_rows(const at::Tensor& mine, int64_t rows, parallel::Group& tp) {
  if (!mine.defined()) return {};
  // The all-gather takes equal parts. A short last one is filled with zeros, which are cut off at
  // the end.
  const int64_t each = rows_per_part(rows, tp.size());
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes[0] = each * tp.size();
  at::Tensor all = at::empty(sizes, mine.options());
  at::Tensor place = all.narrow(0, each * tp.rank(), each);
  place.narrow(0, 0, mine.size(0)).copy_(mine);
  if (mine.size(0) < each) place.narrow(0, mine.size(0), each - mine.size(0)).zero_();
  at::Tensor flat = all.view({-1});
  tp.all_gather_into(flat, place.view({-1}));
  return all.narrow(0, 0, rows);
}

}  // namespace

Range intersect(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range shard_of(int64_t total, int64_t ranks, int64_t rank) {
  return {parallel::vocab_begin(total, ranks, rank), parallel::vocab_end(total, ranks, rank)};
}

Range head_rows(int64_t student_vocab_rows, int64_t teacher_vocab_rows, int64_t ranks,
                int64_t rank) {
  const Range all{0, teacher_vocab_rows};
  if (ranks == 1) return all;
  const Range own = shard_of(student_vocab_rows, ranks, rank);
  const bool last = own.size() > 0 && own.end == student_vocab_rows;
  return intersect({own.begin, last ? teacher_vocab_rows : own.end}, all);
}

Range PieceMap::columns_of(const ForwardRequest& request, int64_t part) const {
  if (request.columns.empty()) return {0, payload_vocab(request.spec, vocab_rows)};
  const auto p = static_cast<size_t>(part);
  return {request.columns.at(p), request.columns.at(p + 1)};
}

Range PieceMap::columns_of(const ForwardRequest& request, int64_t part, int64_t rank) const {
  return intersect(columns_of(request, part), shard_of(vocab_rows, ranks, rank));
}

bool PieceMap::has(const ForwardRequest& request, int64_t part, int64_t rank) const {
  if (request.spec.kind == PayloadKind::kFull) return columns_of(request, part, rank).size() > 0;
  return part % ranks == rank;
}

Payload cut_piece(const Payload& whole, const ForwardRequest& request, int64_t part,
                  const PieceMap& map, int64_t rank) {
  Payload piece;
  piece.label = whole.label;
  piece.label.part = part;
  piece.label.parts = request.parts;
  // The sums belong to the whole answer. Pieces and parts are added up when they are joined, so
  // only one piece carries them.
  if (part == 0 && rank == 0) {
    piece.masked_mass_sum = whole.masked_mass_sum;
    piece.tail_bound_sum = whole.tail_bound_sum;
  }
  if (whole.label.spec.kind == PayloadKind::kFull) {
    // `whole` has this rank's columns alone, so the range counts from the first of them.
    const Range columns = map.columns_of(request, part, rank);
    piece.logps = whole.logps
                      .narrow(1, columns.begin - shard_of(map.vocab_rows, map.ranks, rank).begin,
                              columns.size())
                      .contiguous();
    return piece;
  }
  const Range rows = rows_of_part(whole.label.spec.kind, whole.label.num_rows, request.parts, part);
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, rows.begin, rows.size()) : at::Tensor();
  };
  piece.hidden = cut(whole.hidden);
  piece.ids = cut(whole.ids);
  piece.logps = cut(whole.logps);
  piece.log_tail = cut(whole.log_tail);
  piece.kappa = cut(whole.kappa);
  return piece;
}

Payload join_pieces(std::vector<Payload> pieces) {
  RETORT_CHECK(!pieces.empty()) << "a part without pieces";
  Payload part = std::move(pieces.front());
  if (pieces.size() == 1) return part;
  std::vector<at::Tensor> columns{part.logps};
  for (size_t i = 1; i < pieces.size(); ++i) {
    columns.push_back(pieces[i].logps);
    part.masked_mass_sum += pieces[i].masked_mass_sum;
  }
  part.logps = at::cat(columns, 1);
  return part;
}

Payload gather_parts(Payload part, parallel::Group& tp) {
  const int64_t rows = part.label.num_rows;
  const PayloadKind kind = part.label.spec.kind;
  // A full answer stays cut by columns, as each rank compares its own shard of the vocabulary.
  if (kind != PayloadKind::kFull) {
    for (at::Tensor* tensor : part.row_tensors())
      *tensor = gather_rows(*tensor, rows, tp);
  }
  const bool masks =
      part.label.spec.common_vocab > 0 &&
      (kind == PayloadKind::kFull || kind == PayloadKind::kTopK || kind == PayloadKind::kSampled);
  if (masks) part.masked_mass_sum = tp.all_reduce(part.masked_mass_sum);
  if (kind == PayloadKind::kTopK && part.label.spec.temperature != 1)
    part.tail_bound_sum = tp.all_reduce(part.tail_bound_sum);
  part.label.part = 0;
  part.label.parts = 1;
  return part;
}

}  // namespace retort::roles
