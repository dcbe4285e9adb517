#include "recipes/data/index_stream.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/order.h"

namespace retort::data {

struct IndexStream::Impl {
  Impl(std::shared_ptr<const RowSet> given, const IndexOptions& o, const Cursor& start)
      : rows(std::move(given)), options(o), at(start), order(order_of(start.epoch)) {}

  detail::EpochOrder order_of(int64_t epoch) const {
    return detail::EpochOrder(detail::source_shapes(*rows), options.seed, epoch, options.shuffle);
  }
  // Moves on to the next usable row; false at the end of the epoch.
  bool seek_usable() {
    while (at.consumed < order.size() && !rows->usable(order.row(at.consumed)))
      ++at.consumed;
    return at.consumed < order.size();
  }
  void next_epoch() {
    order = order_of(at.epoch + 1);
    at = {at.epoch + 1, 0, at.total};
  }

  std::shared_ptr<const RowSet> rows;
  IndexOptions options;
  Cursor at;
  detail::EpochOrder order;
};

IndexStream::IndexStream(std::shared_ptr<const RowSet> rows, const IndexOptions& options,
                         const Cursor& start) {
  if (!start.valid())
    throw Error(ErrorCode::kInvalidArgument,
                "an index cursor holds a negative number; expected one from Step::after");
  impl_ = std::make_unique<Impl>(std::move(rows), options, start);
}
IndexStream::~IndexStream() = default;

IndexStream::Step IndexStream::next(int64_t count) {
  RETORT_CHECK(count >= 1) << "count " << count;
  Impl& impl = *impl_;
  if (impl.at.consumed > impl.order.size())
    throw Error(ErrorCode::kMismatch,
                "the saved position lies beyond the end of epoch " + std::to_string(impl.at.epoch) +
                    " (" + std::to_string(impl.order.size()) + " rows); was the data changed?")
        .with("place", impl.at.consumed);

  // A saved cursor may stand behind the last usable row of its epoch, so the next one begins. If
  // that has no usable row either, no epoch has.
  if (!impl.seek_usable()) {
    impl.next_epoch();
    if (!impl.seek_usable())
      throw Error(ErrorCode::kInvalidArgument,
                  "no usable row in the data: all " + std::to_string(impl.rows->size()) +
                      " rows were skipped; the first: " + impl.rows->first_skip_reason());
  }

  Step step;
  while (static_cast<int64_t>(step.rows.size()) < count && impl.seek_usable()) {
    step.rows.push_back(impl.order.row(impl.at.consumed));
    ++impl.at.consumed;
    ++impl.at.total;
  }

  // A cursor at the end of an epoch is written as the beginning of the next one.
  step.epoch = static_cast<double>(impl.at.epoch) +
               static_cast<double>(impl.at.consumed) / static_cast<double>(impl.order.size());
  if (!impl.seek_usable()) {
    step.epoch = static_cast<double>(impl.at.epoch + 1);
    impl.next_epoch();
  }
  step.after = impl.at;
  return step;
}

int64_t IndexStream::rows_per_epoch() const {
  const detail::EpochOrder order = impl_->order_of(0);
  int64_t usable = 0;
  for (int64_t place = 0; place < order.size(); ++place)
    usable += impl_->rows->usable(order.row(place));
  return usable;
}

}  // namespace retort::data
