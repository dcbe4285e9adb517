#include "models/text/table_rows.h"

#include <optional>

#include "base/file.h"
#include "models/text/detail/rust_call.h"
#include "models/text/detail/table_lengths.h"

namespace retort::models {
using detail::borrow;
using detail::call_rust;

bool is_table(std::string_view beginning) {
  // Each message of a stream begins with this mark.
  const bool stream = beginning.starts_with("\xff\xff\xff\xff");
  return stream || beginning.starts_with("PAR1") || beginning.starts_with("ARROW1");
}

struct TableRows::Impl {
  RtTable* handle = nullptr;
  std::string origin, left_out;
  std::optional<detail::RustString> lines;

  ~Impl() { rt_table_free(handle); }
};

TableRows::TableRows(const std::filesystem::path& path) : impl_(std::make_shared<Impl>()) {
  impl_->origin = path.string();
  const MappedFile file(path);
  if (file.text().starts_with("PAR1"))
    detail::check_parquet_lengths(file.text(), impl_->origin);
  else
    detail::check_arrow_lengths(file.text(), impl_->origin);

  detail::RustString left_out;
  call_rust(impl_->origin, rt_table_open, borrow(impl_->origin), &impl_->handle, left_out.out());
  impl_->left_out = left_out.str();
}

std::string_view TableRows::next() {
  impl_->lines.emplace();
  call_rust(impl_->origin, rt_table_next, impl_->handle, impl_->lines->out());
  return impl_->lines->view();
}

const std::string& TableRows::left_out() const { return impl_->left_out; }

}  // namespace retort::models
