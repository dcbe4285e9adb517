// What a divergence is and how it treats a truncated teacher, as plain enumerations: the row
//   kernels
// read them too, and include nothing of the library. Formulas: docs/losses.md.
#pragma once

namespace retort::losses {

enum class DivergenceType { kForwardKl, kReverseKl, kJsd, kSkewedKl, kSkewedReverseKl, kTvd };

// The mass that a top-k teacher has beyond its K ids is one more category, is shared among the K
// ids in proportion, or is left out.
enum class Tail { kBucket, kRenormalize, kDrop };

}  // namespace retort::losses
