#include "roles/generator/weight_box.h"

#include <algorithm>

namespace retort::roles {
namespace {

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.begin.size(); ++d)
    if (std::max(a.begin[d], b.begin[d]) >= std::min(a.end(d), b.end(d))) return false;
  return true;
}

}  // namespace

int64_t Box::numel() const {
  int64_t count = 1;
  for (const int64_t extent : size)
    count *= extent;
  return count;
}

Box intersection(const Box& a, const Box& b) {
  Box box;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t first = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.end(d), b.end(d));
    box.begin.push_back(first);
    box.size.push_back(std::max<int64_t>(0, end - first));
  }
  return box;
}

at::Tensor view_of(at::Tensor values, const std::vector<int64_t>& origin, const Box& box) {
  for (size_t d = 0; d < origin.size(); ++d)
    values = values.narrow(static_cast<int64_t>(d), box.begin[d] - origin[d], box.size[d]);
  return values;
}

bool any_overlap(std::vector<Box> boxes) {
  std::erase_if(boxes, [](const Box& box) { return box.numel() == 0; });
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return a.begin < b.begin; });

  // `open` holds the boxes that begin no later than the next one and reach its first row. The next
  // one can overlap no others, so not all pairs are compared.
  std::vector<const Box*> open;
  for (const Box& next : boxes) {
    std::erase_if(
        open, [&](const Box* box) { return !next.begin.empty() && box->end(0) <= next.begin[0]; });
    for (const Box* box : open)
      if (overlap(*box, next)) return true;
    open.push_back(&next);
  }
  return false;
}

}  // namespace retort::roles
