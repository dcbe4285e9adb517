#include "parallel/detail/store_barrier.h"

#include "base/error.h"

namespace retort::parallel::detail {
namespace {

std::string mark(const std::string& place, int64_t position) {
  return place + "here/" + std::to_string(position);
}

// Appends to `missing` those in [begin, end) that have not arrived. It searches by halves, because
// one request tells that a whole half is there.
void find_missing(StoreClient& store, const std::string& place, int64_t begin, int64_t end,
                  size_t most, std::vector<int64_t>& missing) {
  if (missing.size() >= most || begin == end) return;
  std::vector<std::string> keys;
  for (int64_t position = begin; position < end; ++position)
    keys.push_back(mark(place, position));
  if (store.contains_all(keys)) return;
  if (end - begin == 1) return missing.push_back(begin);

  const int64_t middle = begin + (end - begin) / 2;
  find_missing(store, place, begin, middle, most, missing);
  find_missing(store, place, middle, end, most, missing);
}

}  // namespace

bool meet(StoreClient& store, const std::string& place, int64_t position, int64_t size,
          Deadline deadline) {
  // The mark comes after the count: as long as somebody has not counted, a mark is missing.
  const std::string all = place + "all";
  const bool last = store.add(place + "count", 1) >= size;
  store.set(mark(place, position), "");
  if (last) store.set(all, "");
  try {
    if (!last) store.wait_all({all}, deadline);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    return false;
  }
}

std::vector<int64_t> missing_members(StoreClient& store, const std::string& place, int64_t size,
                                     size_t most) {
  std::vector<int64_t> missing;
  find_missing(store, place, 0, size, most, missing);
  return missing;
}

}  // namespace retort::parallel::detail
