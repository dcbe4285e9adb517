// Where the elements of a piece lie in the whole tensor. Private to models/.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "parallel/parameter.h"

namespace retort::models {

// A slice of a row-major tensor along one dimension, as lengths of its runs.
struct SliceRuns {
  int64_t run = 1;     // elements of the slice that lie together
  int64_t stride = 1;  // from one run to the next in the whole
  int64_t first = 0;   // where the first run begins
  int64_t total = 1;   // elements of the slice

  // Where element `i` of the slice lies in the whole; 0 for the end of the slice, or of an empty
  // one.
  int64_t place(int64_t i) const {
    return run == 0 || i == total ? 0 : first + i / run * stride + i % run;
  }
  // True when elements [begin, begin + count) of the slice lie in one run.
  bool contiguous(int64_t begin, int64_t count) const {
    return count == 0 || begin % run + count <= run;
  }

  // Calls visit(begin in the whole, begin in the piece, count) for the runs of elements [begin,
  // begin + count) of the slice.
  template <class Visit>
  void visit(int64_t begin, int64_t count, Visit&& visit) const {
    for (int64_t done = 0; done < count;) {
      const int64_t length = std::min(run - (begin + done) % run, count - done);
      visit(place(begin + done), done, length);
      done += length;
    }
  }
};

// Aborts if the piece does not lie in the whole tensor or its values are not what it says: whoever
// made it is wrong.
inline SliceRuns slice_runs(const parallel::TensorPiece& piece) {
  const auto dims = static_cast<int64_t>(piece.shape.size());
  RETORT_CHECK(piece.slice_shape.size() == piece.shape.size() &&
               (dims == 0 || (piece.dim >= 0 && piece.dim < dims)))
      << piece.name;

  // From the dimension of the cut on, everything inside one index of it lies together.
  SliceRuns runs;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t whole = piece.shape[static_cast<size_t>(d)];
    const int64_t slice = piece.slice_shape[static_cast<size_t>(d)];
    const int64_t offset = d == piece.dim ? piece.offset : 0;
    RETORT_CHECK(offset >= 0 && slice >= 0 && offset + slice <= whole &&
                 (d == piece.dim || slice == whole))
        << piece.name << " dimension " << d;
    runs.total *= slice;
    if (d < piece.dim) continue;
    runs.run *= slice;
    runs.stride *= whole;
    runs.first = d == piece.dim ? offset : runs.first * whole;
  }
  if (runs.run == runs.stride) {  // no gap between the runs: they are one
    runs.run = std::max<int64_t>(1, runs.total);
    runs.stride = runs.run;
  }

  // The piece is a range of the slice.
  RETORT_CHECK(piece.values.dim() == 1 && piece.values.is_contiguous() && piece.begin >= 0 &&
               piece.begin + piece.values.numel() <= runs.total)
      << piece.name;
  return runs;
}

}  // namespace retort::models
